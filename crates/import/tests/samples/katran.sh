#!/bin/sh
# The server, then what it serves.
sudo ./build/katran_server_grpc -balancer_prog ./deps/bpfprog/bpf/balancer.bpf.o -default_mac 02:00:00:00:00:01 -forwarding_cores=0,1 \
  -intf=ens3 -hc_forwarding=false
./katran_goclient -A -t 192.0.2.1:80
./katran_goclient -a -t 192.0.2.1:80 -r 10.0.0.1 -w 2
./katran_goclient -a -t 192.0.2.1:80 -r 10.0.0.2 -rf LOCAL_REAL
./katran_goclient -a -t 192.0.2.1:80 -r 10.0.0.3
./katran_goclient -d -t 192.0.2.1:80 -r 10.0.0.3
./katran_goclient -A -u [2001:db8::1]:443 -f NO_LRU
./katran_goclient -a -u [2001:db8::1]:443 -r fd00::1 -w 10
./katran_goclient -E -u [2001:db8::1]:443 -f QUIC_VIP
./katran_goclient -quic_mapping fd00::1=7
./katran_goclient -A -t 192.0.2.2:0 -vf NO_SPORT
./katran_goclient -a -t 192.0.2.2:0 -r 10.0.0.4 -w 1
./katran_goclient -new_hc 10.0.0.1 -somark 1000
