"""Where the commands' matrices come from, a file or a name of :mod:`cvrarray.generate`, and where they live.

``cells.h5ad::layers/counts`` is the group ``layers/counts`` of the file ``cells.h5ad``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .. import generate
from ..core import devices

#: dtypes that products are measured in.
DTYPES = ("float32", "float64", "complex64", "complex128")


def read(path: str) -> Any:
    """The matrix of a file, as ``scipy.sparse.csr_array``.

    Raises
    ------
    OSError, ValueError
        The file is missing, broken or holds no matrix; the message names the file.
    """
    from .. import files

    file, group = _file_and_group(path)
    return files.read_csr(file, group=group)


def read_as_stored(path: str) -> Any:
    """As :func:`read`, but of a .cvra file the array of ours that it holds, format and parameters included."""
    from .. import files

    file, group = _file_and_group(path)
    return files.read_stored(file, group=group)


def _file_and_group(path: str) -> tuple[str, str | None]:
    """``"file::group"`` as both; the group is None where none is named, or a file has such a name. A store is an error."""
    from ..store import layout

    if Path(layout.root_file(path)).exists():
        raise ValueError(
            f"{path} is a store, and commands read files. In Python, cvrarray.open_store and cvrarray.Stored open it, and "
            "cvrarray.to_store writes it"
        )
    file, separator, group = path.partition("::")
    return (file, group) if separator and not Path(path).exists() else (path, None)


def load(name: str, *, scale: str, seed: int, device: devices.Device) -> Any:
    """The matrix called `name`, or in the file `name`: a SciPy CSR on the CPU, a CuPy CSR on a GPU.

    Raises
    ------
    ValueError
        `name` is neither.
    """
    if name in generate.MATRICES:
        with device.use():
            return generate.build(name, scale=scale, xp=device.xp, seed=seed)
    if not Path(_file_and_group(name)[0]).exists():
        raise ValueError(f"{name} is no file and no generated matrix; these are {', '.join(generate.MATRICES)}")
    return place(read(name), device)


def place(csr: Any, device: devices.Device) -> Any:
    """A SciPy CSR as it is on the CPU, copied to a CuPy CSR on a GPU; integers become float64 there."""
    if device.kind == "cpu":
        return csr
    from cupyx.scipy.sparse import csr_matrix

    with device.use():
        return csr_matrix(csr.astype(np.float64) if csr.dtype.kind in "biu" else csr)


def dtypes(text: str | None, stored: np.dtype) -> list[np.dtype]:
    """The dtypes of ``--dtype float32,float64``; left out: the stored one, or float64 where no product has it.

    Raises
    ------
    ValueError
        A name is no dtype that products are measured in, or would drop the imaginary part.
    """
    allowed = DTYPES[2:] if stored.kind == "c" else DTYPES
    names = text.split(",") if text else [stored.name if stored.name in DTYPES else "float64"]
    for name in names:
        if name not in allowed:
            raise ValueError(f"--dtype must be among {', '.join(allowed)} for a matrix of {stored}; got {name!r}")
    return [np.dtype(name) for name in names]


def check_dtypes(text: str | None) -> None:
    """ValueError where ``--dtype`` names what no matrix is measured in: to be asked before one is read."""
    for name in text.split(",") if text else ():
        if name not in DTYPES:
            raise ValueError(f"--dtype must be among {', '.join(DTYPES)}; got {name!r}")


def check_output(path: str | None) -> None:
    """OSError where a file could not be written to `path` later; None and ``"-"`` (stdout) are fine."""
    from .. import files

    if path not in (None, "-"):
        files.check_target(path)
