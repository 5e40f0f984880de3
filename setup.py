"""Declares the compiled core; everything else about the package is in pyproject.toml."""

from glob import glob

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup

NATIVE = "src/framepool/_native"
FLAGS = ("-O2", "-std=c11", "-Wall", "-Wno-unused-function", "-fno-plt", "-falign-functions=64")
"""The last two make a frame touch a fifth fewer lines of code, most of which are cold by the next one of a camera."""
INCLUDED = [path for kind in ("pxd", "pxi", "h") for path in glob(f"{NATIVE}/*.{kind}")]

setup(
    ext_modules=cythonize(
        [
            Extension(
                f"framepool._native.{name}",
                [f"{NATIVE}/{name}.pyx"],
                depends=INCLUDED,
                include_dirs=[numpy.get_include()],
                define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
                extra_compile_args=list(FLAGS),
                libraries=["dl", "pthread"],
            )
            for name in ("seqlock", "aeron", "frames", "crc32c", "recording", "bridge", "limits")
        ],
        language_level=3,
        compiler_directives={"binding": True, "embedsignature": True},
    )
)
