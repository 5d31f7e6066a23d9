"""Where the commands' matrices come from, a file or a name of :mod:`cvrarray.generate`, and where they live."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .. import _device, generate


def read(path: str) -> Any:
    """The matrix of a file, as ``scipy.sparse.csr_array``; a progress bar on a terminal.

    Raises
    ------
    OSError, ValueError
        The file is missing, broken or holds no matrix; the message names the file.
    """
    from tqdm import tqdm

    from .. import files

    # disable=None: no bar where stderr is no terminal
    with tqdm(desc=Path(path).name, unit="B", unit_scale=True, disable=None, leave=False, delay=0.5) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        return files.read_csr(path, progress)


def load(name: str, *, scale: str, seed: int, device: _device.Device) -> Any:
    """The matrix called `name`, or in the file `name`: a SciPy CSR on the CPU, a CuPy CSR on a GPU.

    Raises
    ------
    ValueError
        `name` is neither.
    """
    if name in generate.MATRICES:
        with device.use():
            return generate.build(name, scale=scale, xp=device.xp, seed=seed)
    if not Path(name).exists():
        raise ValueError(f"{name} is no file and no generated matrix; these are {', '.join(generate.MATRICES)}")
    return place(read(name), device)


def place(csr: Any, device: _device.Device) -> Any:
    """A SciPy CSR as it is on the CPU, copied to a CuPy CSR on a GPU; integers become float64 there."""
    if device.kind == "cpu":
        return csr
    from cupyx.scipy.sparse import csr_matrix

    with device.use():
        return csr_matrix(csr.astype(np.float64) if csr.dtype.kind in "biu" else csr)


def dtypes(text: str | None, stored: np.dtype) -> list[np.dtype]:
    """The dtypes of ``--dtype float32,float64``; left out: both precisions of the stored kind, real or complex.

    Raises
    ------
    ValueError
        A name is no dtype that products are measured in, or would drop the imaginary part.
    """
    allowed = ("complex64", "complex128") if stored.kind == "c" else ("float32", "float64", "complex64", "complex128")
    names = text.split(",") if text else allowed[:2]
    for name in names:
        if name not in allowed:
            raise ValueError(f"--dtype must be among {', '.join(allowed)} for a matrix of {stored}; got {name!r}")
    return [np.dtype(name) for name in names]
