use starling_atari::games::{self, Memory, Rules};
fn main() {
    let mut bad_games = 0;
    for path in std::env::args().skip(1) {
        let name = std::path::Path::new(&path).file_stem().unwrap().to_str().unwrap().split('-').next().unwrap().to_string();
        let data = std::fs::read(&path).unwrap();
        let game = games::by_name(&name).unwrap();
        let size = if ["klax","darkchambers","elevator_action"].contains(&name.as_str()) { 264 } else { 136 };
        let mut rules = Rules::new(game);
        let (mut n, mut bad) = (0, 0);
        let mut last: Vec<u8> = vec![];
        for (i, rec) in data.chunks_exact(size).enumerate() {
            let ram: &[u8; 128] = rec[8..136].try_into().unwrap();
            if rec[0] == 1 { rules.reset(); last = rec[8..].to_vec(); 
                let o = rules.step(Memory { ram, cartridge: &rec[136..] }); if o.lives != rec[2] { bad += 1; if bad < 4 { println!("{name} reset lives {} want {}", o.lives, rec[2]); } }
                continue; }
            let before = rules.clone();
            let o = rules.step(Memory { ram, cartridge: &rec[136..] });
            n += 1;
            let want = (i32::from_le_bytes(rec[4..8].try_into().unwrap()), rec[1] != 0, rec[2]);
            if (o.reward, o.terminal, o.lives) != want {
                bad += 1;
                if bad < 4 {
                    let ch: Vec<String> = last.iter().zip(&rec[8..]).enumerate().filter(|(_, (a, b))| a != b).map(|(k, (a, b))| format!("{:02X}:{:02x}>{:02x}", k + 128, a, b)).collect();
                    println!("{name} #{i} got {:?} want {:?} [{}] before {}", (o.reward, o.terminal, o.lives), want, ch.join(" "), format!("{before:?}").split_once("}, score").map_or(String::new(), |x| x.1.to_string()));
                }
            }
            last = rec[8..].to_vec();
        }
        if bad > 0 { bad_games += 1; println!("{name}: {bad} of {n} differ"); }
    }
    println!("{bad_games} files differ");
}
