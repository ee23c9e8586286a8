//! Compiles the estimators and codecs of `bpf/shared` for user space.

fn main() {
    println!("cargo::rerun-if-changed=../../bpf/shared");
}
