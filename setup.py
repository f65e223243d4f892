"""Everything static is in pyproject.toml; here only the C parts: if they do not build, it runs in pure Python."""

from glob import glob

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "holdfast._native._codec",
            sources=sorted(glob("native/codec/*.c")),
            depends=sorted(glob("native/codec/*.h")),
            include_dirs=["native/codec"],
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
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
