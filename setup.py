"""Builds the C extensions; all other settings are in pyproject.toml. Without them, holdfast runs in pure Python."""

from glob import glob

from setuptools import Extension, setup


def _extension(name: str) -> Extension:
    return Extension(
        f"holdfast._native._{name}",
        sources=sorted(glob(f"native/{name}/*.c")),
        depends=sorted(glob(f"native/{name}/*.h")),
        include_dirs=[f"native/{name}"],
        define_macros=[("Py_LIMITED_API", "0x030B0000")],
        extra_compile_args=[
            "-O3",
            "-std=c11",
            "-fvisibility=hidden",
            "-Wall",
            "-Wextra",
            "-Werror=implicit-function-declaration",
        ],
        py_limited_api=True,
        optional=True,
    )


setup(
    ext_modules=[_extension("codec"), _extension("fdscan"), _extension("png"), _extension("readahead")],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
