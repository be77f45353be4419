// The selective scan of Mamba-2. Lines are the state's elements.

struct Params {
    records: u32,
    rows: u32,
    heads: u32,
    columns: u32,
    // Heads of a group.
    share: u32,
    dt_min: f32,
    dt_max: f32,
    x: u32,
    x_stride: u32,
    dt: u32,
    dt_stride: u32,
    y: u32,
    y_stride: u32,
}

var<immediate> p: Params;

// Of all heads the rates, below zero; what results keep of inputs; and what is added to steps.
@group(0) @binding(0) var<storage, read> heads: array<f32>;
@group(0) @binding(1) var<storage, read_write> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> dt: array<f32>;
@group(0) @binding(3) var<storage, read_write> batch: array<u32>;
@group(0) @binding(4) var<storage, read_write> state: array<f32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

var<workgroup> sums: array<f32, 2u * WG>;

fn advance(own: Share, row: u32, at: u32) {
    let raw = dt[p.dt + row * p.dt_stride + own.head] + heads[2u * p.heads + own.head];
    let t = clamp(softplus(raw), p.dt_min, p.dt_max);
    let keep = exp(t * heads[own.head]);
    let line = p.x + row * p.x_stride;
    let groups = p.heads / p.share;
    let b = line + p.heads * p.columns + own.head / p.share * LINES + own.first;
    let c = b + groups * LINES;
    var input = 0.0;
    if own.lines > 0u {
        input = x[line + own.head * p.columns + own.column];
    }
    var sum = 0.0;
    for (var i = 0u; i < EACH; i++) {
        if i < own.lines {
            s[i] = s[i] * keep + t * input * x[b + i];
            sum += s[i] * x[c + i];
        }
    }
    sums[at + own.thread] = sum;
    workgroupBarrier();
    if own.writes {
        sum = heads[p.heads + own.head] * input;
        for (var part = 0u; part < PARTS; part++) {
            sum += sums[at + part * width() + own.thread];
        }
        y[p.y + row * p.y_stride + own.head * p.columns + own.column] = sum;
    }
}
