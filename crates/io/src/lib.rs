//! Every system call and libbpf call of Causeway. The data plane's objects are
//! embedded here; nothing above this crate knows what a map is.
