// SPDX-License-Identifier: Apache-2.0
//! The examples that stand behind the help of commands. `rtt` has its own beside its
//! arguments. A test has every line parsed.

/// For `causeway --help`.
pub(crate) const CAUSEWAY: &str = "\
Examples:
  causeway config check /etc/causeway/causeway.toml
  causeway lb -c /etc/causeway/causeway.toml      # balance
  causeway status                                 # whether the running balancer is well
  causeway stats                                  # what it counts and measures
  causeway measure -r dump.pcap                   # the latency of any server's clients";

/// For `causeway lb --help`.
pub(crate) const LB: &str = "\
Examples:
  causeway lb                                     # with /etc/causeway/causeway.toml
  causeway lb -c lb.toml
  causeway lb unload -c lb.toml --yes             # after it was stopped: take its VIPs down";

/// For `causeway agent --help`.
pub(crate) const AGENT: &str = "\
Examples:
  causeway agent                                  # with /etc/causeway/agent.toml
  causeway agent status                           # whether it is well
  causeway agent stats
  causeway agent stats --clients                  # client latency, with [agent.clients]
  causeway agent history --for 1h -o csv
  causeway agent threshold add 2s --statistic p99 # end with the agent
  causeway agent threshold watch                  # a line whenever one is exceeded, or no more
  causeway agent reload                           # exit code 1 if the file is refused
  causeway agent unload --yes                     # after it was stopped: take the data plane down";

/// For `causeway tunnel --help`.
pub(crate) const TUNNEL: &str = "\
Examples:
  causeway config check /etc/causeway/causeway-tunnel.toml
  causeway tunnel                                 # with that file
  causeway tunnel -c tunnel.toml
  causeway tunnel status                          # whether it carries
  causeway tunnel stats --watch
  causeway tunnel reload                          # exit code 1 if the file is refused";

/// For `causeway measure --help`.
pub(crate) const MEASURE: &str = "\
Examples:
  causeway measure -i eth0                        # live, a view of servers; as root
  causeway measure -r dump.pcap.zst               # a line for each flow
  causeway measure -r dump.pcap --per server --percentiles
  causeway measure -r dump.pcap dst port 443 and net 192.0.2.0/24
  causeway measure -r dump.pcap --compare         # with every estimator, side by side
  causeway measure -r dump.pcap -o html --out report.html
  causeway measure -i eth0 --serve 127.0.0.1:9474 # metrics for Prometheus
  tcpdump -i eth0 -s 128 -w - dst port 443 | causeway measure -r - -o csv";

/// For `causeway shadow --help`.
pub(crate) const SHADOW: &str = "\
Examples:
  causeway shadow -i eth0                         # ten minutes beside the balancer; as root
  causeway shadow -i eth0 --for 1m --server 192.0.2.11 --server 192.0.2.12
  causeway shadow -r dump.pcap -o json            # what a mirror port recorded";

/// For `causeway status --help`.
pub(crate) const STATUS: &str = "\
Examples:
  causeway status
  causeway status -o json                         # for a program";

/// For `causeway stats --help`.
pub(crate) const STATS: &str = "\
Examples:
  causeway stats
  causeway stats --watch 2s                       # again every two seconds
  causeway stats --all                            # also counters that are zero
  causeway stats -o csv                           # the reals, for a program
  causeway stats --haproxy                        # the same for a program that reads HAProxy's
  causeway stats --clients                        # on a server with an agent";

/// For `causeway top --help`.
pub(crate) const TOP: &str = "\
Examples:
  causeway top
  causeway top --interval 200ms";

/// For `causeway explain --help`.
pub(crate) const EXPLAIN: &str = "\
Examples:
  causeway explain web                            # each real of a VIP, in short
  causeway explain web 10.0.0.1
  causeway explain 192.0.2.1:80 10.0.0.1 -o json";

/// For `causeway vip --help`.
pub(crate) const VIP: &str = "\
Examples:
  causeway vip list
  causeway vip show web
  causeway vip add 192.0.2.1:80 --name web --real 10.0.0.1 --real 10.0.0.2=3
  causeway vip set web --scheduler latency
  causeway vip set web --control observe          # watch what it would do
  causeway vip set web --limit 100/200            # new flows of a client prefix, per second
  causeway vip set web --source 10.1.0.0/16=10.0.0.3
  causeway vip del web";

/// For `causeway real --help`.
pub(crate) const REAL: &str = "\
Examples:
  causeway real list web
  causeway real drain web 10.0.0.1                # no new connections
  causeway real drain --all 10.0.0.1 --wait       # in all VIPs, until it is empty
  causeway real drain web 10.0.0.1 --undo
  causeway real maintenance web 10.0.0.1          # no probes either
  causeway real weight web 10.0.0.1 3
  causeway real add web 10.0.0.3 --weight 2
  causeway real del web 10.0.0.1";

/// For `causeway override --help`.
pub(crate) const OVERRIDE: &str = "\
Examples:
  causeway override list                          # what differs from the file
  causeway override drop web 10.0.0.1             # the file's settings hold again
  causeway override drop --all";

/// For `causeway fleet --help`.
pub(crate) const FLEET: &str = "\
Examples:
  causeway fleet push --dry-run                   # what this balancer's file would change in the fleet
  causeway fleet history                          # the last changes of VIPs and reals
  causeway fleet rollback                         # the last of them is undone, by a new one
  causeway fleet show -o json                     # on each balancer, into a file
  causeway fleet diff lb1.json lb2.json           # exit code 1 where they differ
  causeway fleet peers                            # members of [peers], and how far weights are apart";

/// For `causeway reload --help`.
pub(crate) const RELOAD: &str = "\
Examples:
  causeway reload                                 # exit code 1 if the file is refused";

/// For `causeway conns --help`.
pub(crate) const CONNS: &str = "\
Examples:
  causeway conns top --count 5
  causeway conns move 198.51.100.7:40000 192.0.2.1:443 10.0.0.9";

/// For `causeway cookie --help`.
pub(crate) const COOKIE: &str = "\
Examples:
  causeway cookie new-keys                        # then copy the file to all balancers
  causeway cookie server-keys 10.0.0.1            # that server's keys file
  causeway cookie agent 10.0.0.1                  # what that server's agent needs to know
  causeway cookie show
  causeway cookie rotate --prepare                # give all their files, reload them
  causeway cookie rotate --switch                 # the same again
  causeway cookie rotate --retire                 # when connections of before are gone";

/// For `causeway trace --help`.
pub(crate) const TRACE: &str = "\
Examples:
  causeway trace 198.51.100.7:4000 192.0.2.1:80 --packet syn
  causeway trace --live
  causeway trace --live --vip web --verdict opened --count 10
  causeway trace --live -o json --real 10.0.0.1 --for 10s";

/// For `causeway capture --help`.
pub(crate) const CAPTURE: &str = "\
Examples:
  causeway capture -w packets.pcapng --for 10s
  causeway capture --vip web --count 20           # a line each
  causeway capture -w packets.pcapng --client 198.51.100.0/24 tcp port 443
  causeway capture -c /etc/causeway/agent.toml    # on a server
  causeway capture -w - --sample 100 | tcpdump -nnr -";

/// For `causeway config --help`.
pub(crate) const CONFIG: &str = "\
Examples:
  causeway config check                           # /etc/causeway/causeway.toml
  causeway config check /etc/causeway/agent.toml
  causeway config diff                            # what a reload would change
  causeway config diff old.toml new.toml
  causeway config schema agent                    # for an editor";

/// For `causeway ipvs --help`.
pub(crate) const IPVS: &str = "\
Examples:
  causeway ipvs -A -t 192.0.2.1:80 -s wlc
  causeway ipvs -a -t 192.0.2.1:80 -r 10.0.0.1 -i -w 2
  causeway ipvs -e -t 192.0.2.1:80 -r 10.0.0.1 -w 0   # no new connections
  causeway ipvs -Ln --stats
  causeway ipvs -Sn                               # what -R reads";

/// For `causeway import --help`.
pub(crate) const IMPORT: &str = "\
Examples:
  ipvsadm-save -n | causeway import ipvsadm --interface eth0
  causeway import keepalived /etc/keepalived/keepalived.conf
  causeway import haproxy-tcp /etc/haproxy/haproxy.cfg --address 192.0.2.1
  causeway import katran katran.sh                # the client's command lines";

/// For `causeway token --help`.
pub(crate) const TOKEN: &str = "\
Examples:
  causeway token alice --role operator            # token and line
  causeway token prometheus --add /etc/causeway/tokens";

/// For `causeway generate --help`.
pub(crate) const GENERATE: &str = "\
Examples:
  causeway generate man /usr/local/share/man/man1
  causeway generate completions bash              # or zsh, fish";

/// For `causeway version --help`.
pub(crate) const VERSION: &str = "\
Examples:
  causeway version
  causeway version -o json                        # for a program";

/// For `causeway doctor --help`.
pub(crate) const DOCTOR: &str = "\
Examples:
  causeway doctor                                 # for all files in /etc/causeway
  causeway doctor eth0 eth1                       # for a balancer on these
  causeway doctor eth0 --role agent
  causeway doctor -c lb.toml -o json";
