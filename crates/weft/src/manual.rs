//! `weft manual`: man pages and bash completion, from what the programs say of themselves.

use anyhow::{Context, Result};
use clap::Command;
use std::fs::{self, File};
use std::path::PathBuf;

/// Arguments of `weft manual`.
#[derive(clap::Args)]
pub struct ManualArgs {
    /// The folder that gets them; made if it is not there.
    folder: PathBuf,
    /// The daemon, for its page.
    #[arg(long)]
    weftd: PathBuf,
}

/// Writes `weft.1`, a page per command, `weftd.8` and `weft.bash`.
pub fn manual(mut command: Command, options: &ManualArgs) -> Result<()> {
    let folder = &options.folder;
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    clap_mangen::generate_to(command.clone(), folder)?;
    for page in fs::read_dir(folder)? {
        let page = page?.path();
        if page.extension().is_some_and(|e| e == "1") {
            fs::write(&page, unfilled(&fs::read_to_string(&page)?))?;
        }
    }
    let help = std::process::Command::new(&options.weftd).arg("--help").output();
    let help = help.with_context(|| options.weftd.display().to_string())?;
    fs::write(folder.join("weftd.8"), daemon_page(&String::from_utf8(help.stdout)?))?;
    let mut completion = File::create(folder.join("weft.bash"))?;
    clap_complete::generate(clap_complete::Shell::Bash, &mut command, "weft", &mut completion);
    Ok(())
}

/// Where clap_mangen puts what a command's help ends with.
const NOTES: &str = ".SH EXTRA\n";

/// A page whose notes keep their lines.
fn unfilled(page: &str) -> String {
    let Some((before, notes)) = page.split_once(NOTES) else { return page.into() };
    let (notes, after) = match notes.find("\n.SH ") {
        Some(end) => notes.split_at(end + 1),
        None => (notes, ""),
    };
    format!("{before}.SH NOTES\n.nf\n{}\n.fi\n{after}", notes.trim_end())
}

/// The daemon's page: its help as it is, with what a reader of man pages looks for around it.
fn daemon_page(help: &str) -> String {
    let mut lines = help.lines().skip(1).skip_while(|l| l.trim().is_empty()).peekable();
    let usage = lines.next_if(|l| l.starts_with("usage:")).unwrap_or_default();
    let body: String = lines.map(|l| roff(l) + "\n").collect();
    format!(
        ".TH weftd 8 \"\" \"Weft {}\"\n.SH NAME\nweftd \\- virtual switch daemon in ovs\\-vswitchd's place\n\
         .SH SYNOPSIS\n{}\n.SH DESCRIPTION\nIt takes the arguments, environment, database, sockets and \
         pidfile of ovs\\-vswitchd(8) of Open vSwitch 3.1.\n.SH OPTIONS\n.nf\n{body}.fi\n.SH SEE ALSO\n\
         weft(1), ovs\\-vsctl(8), ovs\\-ofctl(8), ovs\\-appctl(8), ovs\\-vswitchd.conf.db(5)\n",
        env!("CARGO_PKG_VERSION"),
        roff(&usage.replacen("usage: ovs-vswitchd", "weftd", 1)),
    )
}

/// A line as roff shows it unchanged.
fn roff(line: &str) -> String {
    let text = line.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn pages_have_every_command_and_option() {
        let dir = tempfile::tempdir().unwrap();
        let weftd = dir.path().join("weftd");
        fs::write(
            &weftd,
            "#!/bin/sh\nprintf 'x: y\\nusage: ovs-vswitchd [O]\\n  --detach  go\\n.dot\\n'\n",
        )
        .unwrap();
        fs::set_permissions(&weftd, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let folder = dir.path().join("out");
        manual(crate::Args::command(), &ManualArgs { folder: folder.clone(), weftd }).unwrap();
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
        for command in ["advise", "enable", "disable", "top", "trace", "up", "down"] {
            assert!(read("weft.1").contains(&format!("weft\\-{command}(1)")), "{command}");
            assert!(folder.join(format!("weft-{command}.1")).exists(), "{command}");
        }
        let top = read("weft-top.1");
        assert!(top.contains("\\-\\-once"), "{top}");
        let (_, notes) = top.split_once(".SH NOTES\n.nf\n").unwrap();
        let (notes, _) = notes.split_once("\n.fi\n").unwrap();
        assert!(notes.contains("\nq          end\n"), "{notes}");
        assert!(read("weftd.8").contains("\\-\\-detach  go\n\\&.dot\n"), "{}", read("weftd.8"));
        assert!(read("weft.bash").contains("--interval"));
    }
}
