//! tmp
use ferrofs_codec::*;
fn main() {
    let b = std::fs::read(std::env::args().nth(1).unwrap()).unwrap();
    let s = &b[4..];
    let h = s.split_at(s.len() / 2);
    let pad = if b[0] & 1 == 0 { Padding::Left } else { Padding::Right };
    for (n, st) in [("all", s), ("front", h.0), ("back", h.1)] {
        for want in [Want::Whole, Want::Prefix] {
            for len in 0..300 {
                let mut d = Decoder::new(&Settings::default()).unwrap();
                let mut a = vec![0u8; len];
                let mut c = vec![0xffu8; len];
                let ra = d.decode(Algorithm::Lz4, pad, st, &mut a, want);
                let rc = d.decode(Algorithm::Lz4, pad, st, &mut c, want);
                if ra.is_ok() && rc.is_ok() && a != c {
                    let at: Vec<_> = (0..len).filter(|i| a[*i] != c[*i]).collect();
                    println!("{n} {want:?} {pad:?} {len}: differ at {at:?}");
                } else if ra != rc {
                    println!("{n} {want:?} {len} {ra:?} {rc:?}");
                }
            }
        }
    }
}
