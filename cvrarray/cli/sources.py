"""Where the commands' matrices come from, a file or a name of :mod:`cvrarray.generate`, and where they live."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from .. import _device, generate
from ..cpu import threads

#: Arguments of the generated matrices at scale "medium": about 20 million nonzeros, beyond a CPU's caches, and all of
#: them measured in minutes. (elasticity comes in powers of 8: 4 million.)
MEDIUM: dict[str, tuple[int, ...]] = {
    "stencil27": (91,),
    "poisson7": (143,),
    "elast3": (44,),
    "shell6": (28,),
    "rmat": (20, 20),
    "rmat_unshuffled": (20, 20),
    "uniform_2M_16": (1_250_000, 16),
    "uniform_200k_150": (133_000, 150),
    "elasticity": (4,),
}

SCALES = ("full", "medium", "small")


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
            return _generate(name, scale, device, seed)
    if not Path(name).exists():
        raise ValueError(f"{name} is no file and no generated matrix; these are {', '.join(generate.MATRICES)}")
    return place(read(name), device)


def _generate(name: str, scale: str, device: _device.Device, seed: int) -> Any:
    if scale != "medium":
        return generate.build(name, scale=scale, xp=device.xp, seed=seed)
    recipe = generate.MATRICES[name]
    return recipe.make(*MEDIUM[name], xp=device.xp, seed=seed, **recipe.options)


def stored() -> dict[str, Path]:
    """Files ``<name>.npz`` of the folder that ``CVRARRAY_MATRICES`` names, by name; none where it is unset.

    Raises
    ------
    ValueError
        It names no folder.
    """
    folder = os.environ.get("CVRARRAY_MATRICES")
    if not folder:
        return {}
    if not Path(folder).is_dir():
        raise ValueError(f"CVRARRAY_MATRICES must name a folder of .npz files; got {folder!r}. Unset it to do without")
    return {path.stem: path for path in sorted(Path(folder).glob("*.npz"))}


def read_stored(path: Path) -> Any:
    """A ``scipy.sparse.csr_array`` of the indptr, indices, shape and data of an .npz; every value is 1 without data."""
    from scipy import sparse

    with np.load(path) as arrays:
        missing = {"indptr", "indices", "shape"} - set(arrays)
        if missing:
            raise ValueError(f"{path} must hold indptr, indices and shape; it has no {', '.join(sorted(missing))}")
        indptr, indices, shape = arrays["indptr"], arrays["indices"], arrays["shape"].tolist()
        data = arrays["data"] if "data" in arrays else np.ones(indices.size)
    csr = sparse.csr_array((data, indices, indptr), shape=shape)
    csr.sum_duplicates()
    return csr


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


def thread_counts(text: str | None, device: _device.Device) -> list[int | None]:
    """The numbers of threads of ``--threads 1,all``, ascending; left out: all of them. A GPU has no number: None.

    Raises
    ------
    ValueError
        It is neither a whole number from 1 nor ``all``, or `device` is a GPU.
    """
    if device.kind != "cpu":
        if text:
            raise ValueError(f"--threads is for the CPU; got --device {device}. Leave one of them out")
        return [None]
    counts = set()
    for word in (text or "all").split(","):
        if word != "all" and not (word.isdecimal() and int(word)):
            raise ValueError(f"--threads must be whole numbers from 1, or all, parted by commas; got {word!r}")
        counts.add(threads.count() if word == "all" else int(word))
    return sorted(counts)
