"""Where a rank runs (GPU, threads, precision) and which transport the ranks take."""
