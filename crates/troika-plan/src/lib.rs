//! Plans: which device runs which segment at which shape.
