"""Where images come from: one class for each source, by the name that the command line knows."""

from data_prep.sources import arrays, digits, folders, official, synthetic, tiny

SOURCES = {
    "digits": digits.Digits,
    "cifar10": official.Cifar10,
    "cifar100": official.Cifar100,
    "mnist": official.Mnist,
    "fashionmnist": official.FashionMnist,
    "tinyimagenet": tiny.TinyImageNet,
    "medmnist": arrays.MedMnist,
    "npz": arrays.Npz,
    "folders": folders.Folders,
    "synthetic": synthetic.Synthetic,
}
