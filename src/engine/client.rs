//! Who is asking: the peer, what nginx made of it, or what a trusted proxy says.
use super::exchange::{Exchange, Out, Text, Var};
use super::worker::Worker;
use crate::domain::client::{Address, parse_ip};
use std::io::Write;

fn address(text: &[u8]) -> Address {
    parse_ip(text).map_or(Address::None, Address::Ip)
}

/// The client's address; its text is left in `scratch.client` and set as `$sluice_client`.
pub fn of_request<'r, X: Exchange<'r>>(w: &mut Worker, x: &mut X) -> Address {
    let remote = x.var(Var::Remote).unwrap_or_default();
    let shown = &mut w.scratch.client;
    shown.clear();
    let from_remote = address(remote);
    // Where nginx has resolved the client already (realip), the header is not read again.
    let peers_own = |x: &mut X| x.var(Var::Peer).is_none_or(|peer| peer == remote);
    if w.trust.any() && w.trust.trusts(from_remote) && peers_own(x) {
        let chain = &mut w.scratch.chain;
        chain.clear();
        if x.header(&w.setup.config.client.header, chain) {
            let client = w.trust.client(from_remote, chain);
            if client != from_remote
                && let Address::Ip(ip) = client
            {
                // Writing to a Vec cannot fail.
                let _ = write!(shown, "{ip}");
                x.set_var(Out::Client, Text::Brief(shown));
                return client;
            }
        }
    }
    shown.extend_from_slice(remote);
    x.set_var(Out::Client, Text::Request(remote));
    from_remote
}
