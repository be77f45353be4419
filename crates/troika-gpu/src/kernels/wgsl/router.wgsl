// Chooses experts: a workgroup takes a row.

override SCORE: u32 = 0;
override NORMALIZE: u32 = 0;
override GROUPED: u32 = 0;
override BIASED: u32 = 0;
override SCALED: u32 = 0;

const WG: u32 = 64u;
const LOWEST: f32 = -3.4028234e38;
const NONE: u32 = 0xffffffffu;

struct Params {
    rows: u32,
    experts: u32,
    top_k: u32,
    groups: u32,
    kept: u32,
    scale: f32,
    eps: f32,
    logits: u32,
    logits_stride: u32,
    ids: u32,
    ids_stride: u32,
    weights: u32,
    weights_stride: u32,
}

var<immediate> p: Params;

@group(0) @binding(0) var<storage, read_write> logits: array<f32>;
@group(0) @binding(1) var<storage, read_write> ids: array<i32>;
@group(0) @binding(2) var<storage, read_write> weights: array<f32>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read> expert_scales: array<f32>;

var<workgroup> scores: array<f32, 1024>;
// The scores that experts are chosen by.
var<workgroup> choice: array<f32, 1024>;
// 0: may not be chosen any more.
var<workgroup> free: array<u32, 1024>;
var<workgroup> part_ids: array<u32, WG>;
var<workgroup> chosen: array<u32, 64>;
var<workgroup> chosen_weights: array<f32, 64>;
var<workgroup> group_best: array<f32, 128>;

// The free expert with the largest score to choose by, the first of equals.
fn best(thread: u32) -> u32 {
    var top = LOWEST;
    var id = NONE;
    for (var i = thread; i < p.experts; i += WG) {
        if free[i] == 1u && (choice[i] > top || id == NONE) {
            top = choice[i];
            id = i;
        }
    }
    workgroupBarrier();
    parts[thread] = top;
    part_ids[thread] = id;
    for (var n = WG / 2u; n > 0u; n = n / 2u) {
        workgroupBarrier();
        if thread < n {
            let other = part_ids[thread + n];
            let mine = part_ids[thread];
            let a = parts[thread];
            let b = parts[thread + n];
            if other != NONE && (mine == NONE || b > a || (b == a && other < mine)) {
                parts[thread] = b;
                part_ids[thread] = other;
            }
        }
    }
    workgroupBarrier();
    return part_ids[0];
}

// Leaves only the experts of the groups with the best expert, or with a bias the best two; of equal
// groups the first.
fn limit_groups(thread: u32) {
    let len = p.experts / p.groups;
    for (var g = thread; g < p.groups; g += WG) {
        var top = LOWEST;
        var second = LOWEST;
        for (var i = 0u; i < len; i++) {
            let score = choice[g * len + i];
            second = max(second, min(top, score));
            top = max(top, score);
        }
        group_best[g] = top + select(0.0, second, BIASED == 1u);
    }
    workgroupBarrier();
    for (var i = thread; i < len * p.groups; i += WG) {
        let own = group_best[i / len];
        var better = 0u;
        for (var g = 0u; g < p.groups; g++) {
            if group_best[g] > own || (group_best[g] == own && g < i / len) {
                better += 1u;
            }
        }
        if better >= p.kept {
            free[i] = 0u;
        }
    }
    workgroupBarrier();
}

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) thread: u32,
    @builtin(workgroup_id) at: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    for (var row = at.x; row < p.rows; row += groups.x) {
        workgroupBarrier();
        for (var i = thread; i < p.experts; i += WG) {
            let v = logits[p.logits + row * p.logits_stride + i];
            scores[i] = select(v, 1.0 / (1.0 + exp(clamp(-v, -80.0, 80.0))), SCORE == 2u);
            choice[i] = scores[i];
            free[i] = 1u;
        }
        workgroupBarrier();
        if SCORE == 0u {
            let top = scores[best(thread)];
            workgroupBarrier();
            var own = 0.0;
            for (var i = thread; i < p.experts; i += WG) {
                let e = exp(scores[i] - top);
                scores[i] = e;
                own += e;
            }
            let sum = total(thread, own);
            for (var i = thread; i < p.experts; i += WG) {
                scores[i] = scores[i] / sum;
            }
            workgroupBarrier();
        }
        for (var i = thread; i < p.experts; i += WG) {
            choice[i] = scores[i];
            if BIASED == 1u {
                choice[i] += bias[i];
            }
        }
        workgroupBarrier();
        if GROUPED == 1u {
            limit_groups(thread);
        }
        for (var slot = 0u; slot < p.top_k; slot++) {
            // Past the experts that may be chosen the first one is.
            let id = best(thread);
            let taken = select(id, 0u, id == NONE);
            let top = scores[taken];
            var w = top;
            if SCORE == 3u {
                var own = 0.0;
                for (var i = thread; i < p.experts; i += WG) {
                    let s = scores[i];
                    let far = (top - s) / max(abs(s), top) > 2.0 * p.eps;
                    if free[i] == 1u && !far {
                        own += exp(s - top);
                    }
                }
                w = 1.0 / total(thread, own);
            }
            workgroupBarrier();
            if thread == 0u {
                chosen[slot] = taken;
                chosen_weights[slot] = w;
                free[taken] = 0u;
            }
            workgroupBarrier();
        }
        if thread == 0u {
            if SCORE == 1u {
                // The first is the largest.
                let top = chosen_weights[0];
                var sum = 0.0;
                for (var i = 0u; i < p.top_k; i++) {
                    let e = exp(chosen_weights[i] - top);
                    chosen_weights[i] = e;
                    sum += e;
                }
                for (var i = 0u; i < p.top_k; i++) {
                    chosen_weights[i] = chosen_weights[i] / sum;
                }
            }
            var factor = p.scale;
            if NORMALIZE == 1u {
                var sum = 0.0;
                for (var i = 0u; i < p.top_k; i++) {
                    sum += chosen_weights[i];
                }
                factor = factor / max(sum, 1.1754944e-38);
            }
            for (var i = 0u; i < p.top_k; i++) {
                ids[p.ids + row * p.ids_stride + i] = i32(chosen[i]);
                var w = chosen_weights[i] * factor;
                if SCALED == 1u {
                    w *= expert_scales[chosen[i]];
                }
                weights[p.weights + row * p.weights_stride + i] = w;
            }
        }
    }
}
