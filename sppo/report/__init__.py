"""Records to tables, figures, TensorBoard layout and HTML. Reads only; trains nothing.

=======================  ==========================================================================
``cells``               runs -> cells (one environment, algorithm and setting, several seeds), estimates
``labels``              what an algorithm is called and drawn as, from the registered surrogates
``statistics``          estimates with intervals, on arrays
``summary``             cells -> the rows of every table that is over several of them
``figures``             cells and rows -> figures, which ``plots`` makes into files and SVG
``html``, ``tables``    rows and figures -> pages (from ``templates/``) and CSV files
``provenance``          command, versions and seeds, which every figure and table carries; cells run again
``tensorboard``         event files read and written; a study -> a log directory with layout and hparams
``command``             ``python -m sppo report``
``compare``             ``python -m sppo compare``: any TensorBoard log directory
=======================  ==========================================================================
"""
