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
            "-ffp-contract=off",  # the same pixels of images on every processor
            "-Wall",
            "-Wextra",
            "-Werror=implicit-function-declaration",
        ],
        py_limited_api=True,
        optional=True,
    )


def _preload_library() -> Extension:
    """Describe the library of `holdfast trace`: not a Python module, but built and installed like one."""
    library = _extension("fdtrace")
    library.depends.append("native/fdtrace/hooks.def")
    library.define_macros = [("_GNU_SOURCE", None)]
    # The hooks have the names of what they hook: fortified headers would redirect them, and only -Bsymbolic-functions
    # lets the library take the addresses of its own.
    library.extra_compile_args += ["-std=gnu11", "-U_FORTIFY_SOURCE", "-fno-semantic-interposition"]
    library.extra_link_args = ["-Wl,-Bsymbolic-functions"]
    return library


setup(
    ext_modules=[*map(_extension, ("chunks", "codec", "images", "png", "readahead")), _preload_library()],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
