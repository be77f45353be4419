
// Sizes of products of a few rows. No override constant may come after an array whose length is
// computed, or a function that uses one (naga 30 fails): so these come first.

// Rows of activations that the kernel is made for.
override ROWS: u32 = 1;
override LANES: u32 = 32;
override TEAMS: u32 = 2;
// LANES * TEAMS.
override WG: u32 = 64;
// How often a workgroup computes products of some weight rows.
override ROUNDS: u32 = 1;
// How activations are normalised. 0: not at all; 1: divided by the root of the mean square; 2: less
// the mean, divided by the root of the variance; 3: the same, with a bias.
override NORM: u32 = 0;
