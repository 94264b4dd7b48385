"""Files from strangers: read as data, never run. See SECURITY.md for what is promised."""

from sppo.loading.errors import LoadError
from sppo.loading.restore import load_vec_normalize

__all__ = ["LoadError", "load_vec_normalize"]
