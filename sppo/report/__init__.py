"""Records to tables, figures, TensorBoard layout and HTML. Reads only; trains nothing.

=======================  ==========================================================================
``cells``               runs -> cells: one environment, one algorithm, one setting, several seeds
``statistics``          estimates with intervals, on arrays
``summary``             cells -> the rows of every table
``curves``, ``figures``  cells and rows -> matplotlib figures in the look of ``style``
``html``, ``tables``    rows and figures -> ``report.html`` and CSV files
``provenance``          command, versions and seeds, which every figure and table carries
``events``, ``logdir``  TensorBoard event files, read and written; the runs in a log directory
``tensorboard``         a study -> a log directory with layout and hparams
``command``             ``python -m sppo report``
``compare``             ``python -m sppo compare``: any TensorBoard log directory; ``compare_output``
                        writes its files
=======================  ==========================================================================
"""
