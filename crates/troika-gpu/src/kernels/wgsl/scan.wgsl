// Heads whose state is a matrix of LINES lines, and columns that do not depend on each other. Threads
// share a column: each keeps some lines of it in registers.

override LINES: u32 = 128;
// Threads of a column.
override PARTS: u32 = 4;

const WG: u32 = 128u;
const EACH: u32 = 32u;

// What a thread works on: a column of a head, and its lines of it.
struct Share {
    thread: u32,
    head: u32,
    column: u32,
    first: u32,
    lines: u32,
    // Whether it writes the results of the column.
    writes: bool,
}

var<private> s: array<f32, EACH>;

// Columns of a workgroup.
fn width() -> u32 {
    return WG / PARTS;
}

// Where a line of a column is in a row of the state.
fn place(row: u32, own: Share, line: u32) -> u32 {
    return ((row * p.heads + own.head) * LINES + own.first + line) * p.columns + own.column;
}

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) thread: u32,
    @builtin(workgroup_id) at: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let blocks = (p.columns + width() - 1u) / width();
    let column = at.x % blocks * width() + thread % width();
    let part = thread / width();
    let first = part * EACH;
    let has = part < PARTS && column < p.columns;
    let lines = select(0u, min(EACH, max(LINES, first) - first), has);
    let own = Share(thread, at.x / blocks, column, first, lines, has && part == 0u);
    var turn = 0u;
    for (var start = at.y; start < p.rows; start += groups.y) {
        let end = start + rows_from(start);
        if end == start {
            continue;
        }
        let before = state_before(start);
        for (var i = 0u; i < EACH; i++) {
            s[i] = 0.0;
            if i < lines && before != NONE {
                s[i] = state[place(before, own, i)];
            }
        }
        for (var row = start; row < end; row++) {
            advance(own, row, turn * WG);
            // The next row's sums are apart from those that threads may still read.
            turn = 1u - turn;
            let to = kept_in(row);
            if to != NONE {
                for (var i = 0u; i < EACH; i++) {
                    if i < lines {
                        state[place(to, own, i)] = s[i];
                    }
                }
            }
        }
    }
}
