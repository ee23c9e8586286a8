//! `causeway`: the one binary. See `causeway --help`.

fn main() -> anyhow::Result<()> {
    anyhow::bail!("no command is built in yet")
}
