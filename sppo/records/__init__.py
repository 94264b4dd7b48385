"""What a run leaves on disk: written by ``study``, read by ``report``; neither knows the other.

===============  ==================================================================================
``config``       a run's configuration and its identity
``run_files``    the files of one run directory, written and read
``runs``         one run directory -> :class:`~sppo.records.runs.Run`, believed or not
``studies``      a directory of runs -> :class:`~sppo.records.studies.StudyRecords`
``published``    the same in two CSV files, for git
``subset``       a part of a study, by environment, algorithm, seed and parameters
===============  ==================================================================================

Standard library and NumPy only: neither torch nor Stable-Baselines3 is loaded.
"""
