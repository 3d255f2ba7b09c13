"""Statistics of measurements: speed from pairs of windows and over builds, quality over seeds. No torch."""
