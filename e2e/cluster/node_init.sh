#!/bin/bash
# The first process of a node: makes its file system look like a freshly started machine, starts containerd,
# kube-proxy and the kubelet, and reaps orphans. Started by node.py with everything it needs in the environment:
# NODE (name), FOLDER (state), KUBECONFIG_OF_NODE, NODE_ADDRESS, BINARIES (a PATH), IMAGES (archives).
set -u
export PATH=$BINARIES:$PATH

hostname "$NODE"
mount --make-rshared /                        # volume mounts of the kubelet must reach containerd
mount -t proc proc /proc
for kept in kubelet containerd cni; do
  mkdir -p "/var/lib/$kept" && mount --bind "$FOLDER/$kept" "/var/lib/$kept"
done
mkdir -p /etc/cni/net.d && mount --bind "$FOLDER/cni-conf" /etc/cni/net.d
mount --bind "$FOLDER/log" /var/log
mount -t tmpfs tmpfs /run                     # sockets and pid files of no other node

until [ -e "$FOLDER/connected" ]; do sleep 0.05; done
echo 1 >/proc/sys/net/ipv4/ip_forward

# The kubelet runs in a mount namespace of its own, where plain files cover the machine-wide settings it would
# write. The node's own /proc stays uncovered: runc may not mount a new one in a user namespace otherwise.
cat >/run/kubelet-namespace <<'KUBELET'
mount --make-private /proc
mkdir -p /run/sysctl
while read -r name value; do
  file=/run/sysctl/$(echo "$name" | tr / .)
  echo "$value" >"$file" && mount --bind "$file" "/proc/sys/$name"
done <"$FOLDER/etc/sysctl"
exec "$@"
KUBELET

containerd -c "$FOLDER/etc/containerd.toml" >/var/log/containerd.log 2>&1 </dev/null &
until [ -S /run/containerd/containerd.sock ]; do sleep 0.05; done
for archive in $IMAGES; do ctr -n k8s.io images import "$archive"; done
kube-proxy --config="$FOLDER/etc/kube-proxy.yaml" >/var/log/kube-proxy.log 2>&1 </dev/null &

while :; do
  if [ ! -e /run/kubelet.off ]; then
    unshare -m --propagation unchanged sh /run/kubelet-namespace kubelet \
      --config="$FOLDER/etc/kubelet.yaml" --kubeconfig="$KUBECONFIG_OF_NODE" \
      --hostname-override="$NODE" --node-ip="$NODE_ADDRESS" --v=2 >>/var/log/kubelet.log 2>&1 </dev/null &
    echo $! >/run/kubelet.pid
    wait $!
  fi
  sleep 0.5
done
