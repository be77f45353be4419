//! Spans on one clock, and the Chrome trace writer.
