//! The laboratory: network namespaces, real servers, clients that log what
//! they felt, and scenarios built from them. Needs root; development only.
