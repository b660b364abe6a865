//! Runs a ROM and prints memory and screen.
use starling_atari::ale::Ale;
use starling_atari::cartridge::Rom;
use starling_atari::controllers::Action;
use std::sync::Arc;
fn main() {
    // usage: probe ROM OUT RESETS ACTIONS(hex) -> OUT: per frame ram(128)+screen
    let a: Vec<String> = std::env::args().collect();
    let rom = Arc::new(Rom::new(&std::fs::read(&a[1]).unwrap()).unwrap());
    let mut ale = Ale::new(rom, 0).unwrap();
    let resets: usize = a[3].parse().unwrap();
    for _ in 0..resets {
        ale.reset();
    }
    let mut out = vec![];
    let mut scr = vec![0u8; 160 * ale.console().height()];
    let mut snap = |ale: &Ale| {
        out.extend_from_slice(ale.console().ram());
        ale.console().screen(&mut scr);
        out.extend_from_slice(&scr);
    };
    snap(&ale);
    let acts = a.get(4).cloned().unwrap_or_default();
    for c in acts.bytes() {
        let code = c - b'a';
        ale.act(Action::new(code).unwrap());
        snap(&ale);
    }
    std::fs::write(&a[2], out).unwrap();
    println!("{} {:?}", ale.console().height(), ale.console().rom().mapper());
}
