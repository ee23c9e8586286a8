// SPDX-License-Identifier: Apache-2.0
//! Which packets count: skipped, filtered, of which direction.

use crate::{HEADER, measure, measure_stdin, records, stderr, stdout, testdata, unpacked};

#[test]
fn skipped_packets_are_counted_by_reason() {
    let mut pcap = unpacked("w1.pcap.zst");
    let count = records(&pcap).len();
    let arp = [&[0xff; 12][..], &[0x08, 0x06], &[0; 28]].concat();
    let icmp = {
        let mut packet = records(&pcap)[0].2.to_vec();
        packet[14 + 9] = 1;
        packet
    };
    for packet in [&arp, &icmp, &arp] {
        pcap.extend([0; 8]);
        pcap.extend((packet.len() as u32).to_le_bytes());
        pcap.extend((packet.len() as u32).to_le_bytes());
        pcap.extend(packet);
    }
    let output = measure_stdin(&pcap, &["-o", "csv"]);
    assert!(output.status.success());
    let expected = format!(
        "{} packets, {count} measured in 1 flow, 3 skipped (not_ip 2, protocol 1), \
         1 timestamps going backwards\n",
        count + 3
    );
    assert_eq!(stderr(&output), expected);
}

#[test]
fn filters_and_directions_choose_the_packets() {
    let file = testdata("w4.pcap.zst");
    let all = stdout(&measure(&file, &["-o", "csv"])).to_owned();
    for args in [
        ["--port", "8080"],
        ["--host", "10.9.0.0/16"],
        ["--client-net", "10.9.1.0/24"],
    ] {
        let args = [&["-o", "csv"][..], &args].concat();
        assert_eq!(stdout(&measure(&file, &args)), all, "{args:?}");
    }
    for args in [
        ["--port", "81"],
        ["--host", "192.0.2.1"],
        ["--client-net", "10.9.2.2"],
    ] {
        let args = [&["-o", "csv"][..], &args].concat();
        let output = measure(&file, &args);
        assert!(output.status.success());
        assert_eq!(stdout(&output), format!("{HEADER}\n"), "{args:?}");
    }
    let wrong = measure(&file, &["--client-net", "10.9.2.2"]);
    assert!(stderr(&wrong).contains("every packet seems to come from a server"));
    assert_eq!(measure(&file, &["--epoch", "200"]).status.code(), Some(2));
}

#[test]
fn tcpdumps_words_select_packets() {
    let w4 = testdata("w4.pcap.zst");
    let all = measure(&w4, &["-o", "csv"]);
    for words in [
        &["tcp dst port 8080"][..],
        &["tcp", "dst", "port", "8080", "and", "net", "10.9.0.0/16"],
    ] {
        let output = measure(&w4, &[&["-o", "csv"], words].concat());
        assert_eq!(stdout(&output), stdout(&all), "{words:?}");
    }
    let none = measure(&w4, &["-o", "csv", "udp or ip6"]);
    assert!(none.status.success());
    assert_eq!(stdout(&none).lines().count(), 1);
    assert!(stderr(&none).contains(" filtered out"), "{}", stderr(&none));
    // A part of the packets, by any number of threads: what --port selects.
    let mut both = unpacked("w4.pcap.zst");
    both.extend_from_slice(&unpacked("h3.pcap.zst")[24..]);
    let by_port = measure_stdin(&both, &["-o", "csv", "--port", "8080"]);
    assert_eq!(stdout(&by_port), stdout(&all));
    for threads in ["0", "1", "3"] {
        let output = measure_stdin(&both, &["-o", "csv", "--threads", threads, "port 8080"]);
        assert_eq!(stdout(&output), stdout(&by_port), "{threads} threads");
    }

    let wrong = measure(&w4, &["tcp dst and 8080"]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(
        stderr(&wrong).contains("the filter expression `tcp dst and 8080` is refused"),
        "{}",
        stderr(&wrong)
    );
    assert_eq!(stderr(&wrong).lines().count(), 1);
}
