//! The CPU device: kernels, thread pool, executor of subgraphs.
