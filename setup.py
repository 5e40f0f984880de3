"""Declares the compiled core; everything else about the package is in pyproject.toml."""

from Cython.Build import cythonize
from setuptools import Extension, setup

NAMES = ("seqlock", "aeron")

setup(
    ext_modules=cythonize(
        [
            Extension(
                f"framepool._native.{name}",
                [f"src/framepool/_native/{name}.pyx"],
                extra_compile_args=["-O2", "-std=c11", "-Wall", "-Wno-unused-function"],
                libraries=["dl", "pthread"],
            )
            for name in NAMES
        ],
        language_level=3,
        compiler_directives={"binding": True, "embedsignature": True},
    )
)
