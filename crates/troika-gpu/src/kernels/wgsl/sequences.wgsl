// The sequences of a batch, where a state is one row. For each row of the batch there are four words:
// the row of the state that keeps what is behind it, or NONE; how many rows its sequence has, if it is
// the first of them, else 0; and the row of the state that is before it, or NONE.

const NONE: u32 = 0xffffffffu;

fn kept_in(row: u32) -> u32 {
    return batch[p.records + row * 4u];
}

fn rows_from(row: u32) -> u32 {
    return batch[p.records + row * 4u + 1u];
}

fn state_before(row: u32) -> u32 {
    return batch[p.records + row * 4u + 2u];
}
