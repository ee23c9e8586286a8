// SPDX-License-Identifier: Apache-2.0

use super::*;

#[test]
fn the_counters_of_a_path_outlive_its_settings() {
    let mut engine = TransportEngine::new(TransportConfig::default(), 1).unwrap();
    let id = PathId(0);
    let sent = |engine: &TransportEngine| engine.path_metrics(id).unwrap().sent_chunks;
    for mtu in [1500, 1400] {
        // As a reload does with a path whose MTU has changed.
        engine.remove_path(1, id);
        let peer = ([192, 0, 2, 1], 7000).into();
        engine.add_path(1, id, PathConfig { peer, mtu }).unwrap();
        engine.paths.get_mut(0).unwrap().stats.sent_chunks += 3;
    }
    assert_eq!(sent(&engine), 6);
    engine.remove_path(2, id);
    // The peer is met while the path is away.
    engine.paths.begin_session(3, &engine.config);
    let peer = ([192, 0, 2, 1], 7000).into();
    let path = PathConfig { peer, mtu: 1500 };
    engine.add_path(4, id, path).unwrap();
    assert_eq!(sent(&engine), 6);
}

#[test]
fn another_version_of_the_format_is_told_once() {
    let mut engine = TransportEngine::new(TransportConfig::default(), 1).unwrap();
    let peer = ([192, 0, 2, 1], 7000).into();
    let path = PathConfig { peer, mtu: 1500 };
    engine.add_path(1, PathId(0), path).unwrap();
    for _ in 0..3 {
        let taken = engine.handle_datagram(1, PathId(0), peer, &mut [0x23; 44], Span::default());
        assert_eq!(taken, Err(DropReason::Version));
    }
    assert_eq!(engine.metrics().drops(DropReason::Version), 3);
    assert_eq!(engine.poll_event(), Some(TunnelEvent::PeerVersion(2)));
    assert_eq!(engine.poll_event(), None);
}

#[test]
fn frames_that_outlive_their_only_path_are_segmented_for_the_next() {
    let mut engine = TransportEngine::new(TransportConfig::default(), 1).unwrap();
    let id = PathId(0);
    let path = |mtu| PathConfig {
        peer: ([192, 0, 2, 1], 7000).into(),
        mtu,
    };
    engine.add_path(0, id, path(9000)).unwrap();
    engine.session.begin(0, 2);
    let frame = Span {
        slot: 7,
        offset: 0,
        len: 60_000,
    };
    engine.handle_frame(0, frame, 1).unwrap();
    let sizes = |engine: &TransportEngine| {
        let frames = &engine.outbound.frames;
        let frames = frames.all().into_iter().filter_map(|at| frames.get(at));
        frames.map(|frame| frame.size).collect::<Vec<_>>()
    };
    let before = sizes(&engine);
    assert!(matches!(before[..], [size] if size > 1500), "{before:?}");
    // As a reload does with a path whose MTU has changed.
    engine.remove_path(1, id);
    engine.add_path(1, id, path(1500)).unwrap();
    let after = sizes(&engine);
    assert!(
        matches!(after[..], [size] if size <= engine.max_chunk),
        "{after:?}"
    );
}
