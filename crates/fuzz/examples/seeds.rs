//! Writes the seeds of all targets; lines below `# found` stay.

fn main() {
    for target in &fuzz::TARGETS {
        let path = target.seeds_file();
        let old = std::fs::read_to_string(&path).unwrap_or_default();
        let found = old.split_once("# found\n").map_or("", |(_, found)| found);
        let lines: String =
            (target.make_seeds)().iter().map(|s| testkit::to_hex(s) + "\n").collect();
        std::fs::write(&path, format!("{lines}# found\n{found}")).expect("the seeds' directory");
        println!("{}: {} bytes", path.display(), lines.len() / 2);
    }
}
