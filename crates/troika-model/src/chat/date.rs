//! `strftime_now`.

/// The date formats that templates use.
pub(super) fn strftime(format: &str, year: i32, month: u32, day: u32) -> String {
    const MONTHS: &str = "January February March April May June July August September October \
                          November December";
    let name = MONTHS.split(' ').nth((month.clamp(1, 12) - 1) as usize).unwrap_or_default();
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('Y') => out.push_str(&year.to_string()),
            Some('m') => out.push_str(&format!("{month:02}")),
            Some('d') => out.push_str(&format!("{day:02}")),
            Some('b') => out.push_str(&name[..3]),
            Some('B') => out.push_str(name),
            Some('%') => out.push('%'),
            Some(other) => out.extend(['%', other]),
            None => out.push('%'),
        }
    }
    out
}
