#!/usr/bin/env bash
# Soft RoCE without hardware, and without modules on this host: QEMU, Debian's kernel and rdma-core, all from Debian's packages.
#   tests/labs/roce.sh prepare       gets the packages and makes the machine's file system, unless that is there
#   tests/labs/roce.sh one FOLDER    one machine: rxe0 and rxe1 on the two ends of a veth pair, 10.8.0.1 and 10.8.0.2
#   tests/labs/roce.sh pair FOLDER   two machines with one wire: rxe0 on eth0, 10.9.0.1 and 10.9.0.2
#   tests/labs/roce.sh rails FOLDER  two machines with two wires: rxe1 on eth1, 10.10.0.1 and 10.10.0.2, too
# The shell script FOLDER/job runs inside as root, by busybox; its argument is "one", "a" or "b". FOLDER is /host there, so what it
# writes to /host comes back; its output goes to FOLDER/out.one (.a, .b). Ends with its exit code, or with 124 after LAB_LIMIT_S
# seconds (120). ROCE: the folder for packages and file system (target/roce). Needs apt-get, as root where QEMU is not installed.
# Says "skipped: ..." and ends with 0 where the machine lacks something.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
made=${ROCE:-$here/../../target/roce}
readonly TOOLS=(qemu-system-x86_64:qemu-system-x86 depmod:kmod cpio:cpio)
readonly PACKAGES=(rdma-core ibverbs-utils ibverbs-providers libibverbs1 librdmacm1 libibumad3 perftest iproute2 busybox-static nftables)
readonly MODULES=(virtio_pci virtio_net veth crc32_generic rdma_rxe ib_uverbs rdma_ucm 9p 9pnet_virtio nf_tables nft_numgen nft_compat)
readonly PROGRAMS=(usr/bin/ibv_devinfo usr/bin/ibv_rc_pingpong usr/bin/ib_write_bw usr/bin/ib_write_lat usr/bin/rdma bin/rdma
    sbin/rdma usr/sbin/nft bin/ip sbin/ip)
readonly LIBRARIES=lib/x86_64-linux-gnu

skip() { echo "skipped: $*"; exit 0; }

# Ends with an error where a package is not to be had.
packages() {
    mkdir -p "$made/deb" "$made/kernel" "$made/user"
    cd "$made/deb"
    local kernel package
    kernel=$(apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends/ {print $2; exit}')
    [[ -n $kernel ]] || return 1
    ls "$kernel"_*.deb >/dev/null 2>&1 || apt-get download -qq "$kernel" "${PACKAGES[@]}" 2>/dev/null || return 1
    dpkg-deb -x "$kernel"_*.deb "$made/kernel"
    for package in "${PACKAGES[@]}"; do dpkg-deb -x "$package"_*.deb "$made/user"; done
    cd - >/dev/null
}

# The kernel's modules that the machine needs, in the order in which they are loaded.
modules() {
    local version=$1 root=$2 module file name
    [[ -f $made/kernel/lib/modules/$version/modules.dep ]] || depmod -b "$made/kernel" "$version"
    mkdir -p "$root/mod"
    for module in "${MODULES[@]}"; do
        modprobe -d "$made/kernel" -S "$version" --show-depends "$module" | awk '/^insmod/ {print $2}' | while read -r file; do
            name=$(basename "$file")
            [[ -f $root/mod/$name ]] && continue
            cp "$file" "$root/mod/"
            strip -g "$root/mod/$name"
            echo "$name" >>"$root/mod/order"
        done
    done
}

# Copies the libraries of all programs and libraries there.
libraries() {
    local root=$1 path library
    for path in $(find "$root/bin" "$root/lib" -type f ! -name busybox); do
        LD_LIBRARY_PATH=$made/user/usr/$LIBRARIES:$made/user/$LIBRARIES ldd "$path" 2>/dev/null | awk '/=> \// {print $3}'
    done | sort -u | while read -r library; do cp -nL "$library" "$root/$LIBRARIES/"; done
    cp -nL /lib64/ld-linux-x86-64.so.2 "$root/lib64/"
}

file_system() {
    local root=$made/root version program command
    version=$(ls "$made/kernel/lib/modules")
    cp "$made/kernel/boot/vmlinuz-$version" "$made/vmlinuz"
    rm -rf "$root"
    mkdir -p "$root"/{bin,lib64,$LIBRARIES/libibverbs,etc/libibverbs.d,usr/$LIBRARIES,proc,sys,dev,tmp,host,run,root}
    cp "$made/user/bin/busybox" "$root/bin/"
    for command in sh mount umount ls cat sleep kill echo mkdir poweroff insmod grep head tail awk seq env ps dmesg date timeout ping sed \
        usleep wc hostname sort tr cut rm cp touch true ln test; do ln -sf busybox "$root/bin/$command"; done
    for program in "${PROGRAMS[@]}"; do
        if [[ -f $made/user/$program ]]; then cp "$made/user/$program" "$root/bin/"; fi
    done
    modules "$version" "$root"
    cp "$made/user/usr/$LIBRARIES"/libibverbs/librxe-*.so "$root/$LIBRARIES/libibverbs/"
    cp "$made/user/etc/libibverbs.d/rxe.driver" "$root/etc/libibverbs.d/"
    ln -s "/$LIBRARIES/libibverbs" "$root/usr/$LIBRARIES/libibverbs"
    # Loaded while programs run: by ours, and by theirs.
    for library in libibverbs.so.1 libgcc_s.so.1; do
        cp -nL "$(find "$made/user/usr/$LIBRARIES" "/$LIBRARIES" -name "$library" -print -quit)" "$root/$LIBRARIES/"
    done
    libraries "$root"
    echo root:x:0:0:root:/root:/bin/sh >"$root/etc/passwd"
    cat >"$root/init" <<'INIT'
#!/bin/sh
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t tmpfs tmp /tmp
mkdir -p /dev/shm; mount -t tmpfs shm /dev/shm
export PATH=/bin LD_LIBRARY_PATH=/lib/x86_64-linux-gnu HOME=/root
while read -r module; do insmod /mod/$module 2>/tmp/error || echo "insmod $module: $(cat /tmp/error)"; done </mod/order
for word in $(cat /proc/cmdline); do case $word in role=*) role=${word#role=};; esac; done
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 host /host
hostname $role
echo "127.0.0.1 localhost $role" >/etc/hosts
ip() { /bin/ip "$@"; } # Debian's busybox prefers its own
ip link set lo up
if [ $role = one ]; then
    ip link add v0 type veth peer name v1
    for end in 0 1; do
        ip addr add 10.8.0.$((end + 1))/24 dev v$end; ip link set v$end up; rdma link add rxe$end type rxe netdev v$end
    done
else
    end=1; [ $role = b ] && end=2
    for wire in 0 1; do
        [ -d /sys/class/net/eth$wire ] || continue
        ip addr add 10.$((9 + wire)).0.$end/24 dev eth$wire; ip link set eth$wire up; rdma link add rxe$wire type rxe netdev eth$wire
    done
fi
echo "ready $(cut -d' ' -f1 /proc/uptime)"
(set -- $role; . /host/job) >/host/out.$role 2>&1; echo $? >/host/code.$role
echo "done $(cut -d' ' -f1 /proc/uptime)"; poweroff -f
INIT
    chmod +x "$root/init"
    (cd "$root" && find . | cpio -o -H newc --quiet | gzip -1 >"$made/initramfs.new")
    mv "$made/initramfs.new" "$made/initramfs.gz"
}

prepare() {
    local tool
    [[ $(uname -m) == x86_64 ]] || skip "soft RoCE runs in a machine of x86-64"
    for tool in "${TOOLS[@]}"; do
        command -v "${tool%:*}" >/dev/null && continue
        ((EUID == 0)) || skip "no ${tool%:*} for soft RoCE (Debian: ${tool#*:})"
        apt-get install -y -qq --no-install-recommends "${tool#*:}" >/dev/null 2>&1 || skip "no network for Debian's ${tool#*:}"
    done
    mkdir -p "$made"
    exec 9>"$made/lock"
    flock 9
    if [[ ! $made/initramfs.gz -nt ${BASH_SOURCE[0]} ]]; then
        packages || skip "no network for the packages of a kernel with soft RoCE"
        file_system
    fi
    exec 9>&-
}

# boot ROLE FOLDER [OPTION]...: a machine, until its job has ended.
boot() {
    local role=$1 folder=$2
    shift 2
    timeout -k 5 "${LAB_LIMIT_S:-120}" qemu-system-x86_64 -M q35 -accel tcg,thread=multi -cpu max -smp 2 -m 768 -nodefaults \
        -no-user-config -display none -serial stdio -no-reboot -kernel "$made/vmlinuz" -initrd "$made/initramfs.gz" \
        -append "console=ttyS0 quiet loglevel=3 panic=-1 mitigations=off tsc=reliable random.trust_cpu=on role=$role" \
        -virtfs "local,path=$folder,mount_tag=host,security_model=none" "$@" </dev/null >"$folder/console.$role" 2>&1
}

# The options of the network cards of a machine: wires KIND FOLDER.
wires() {
    local server=$1 folder=$2 count=$3 end=$4 wire
    for ((wire = 0; wire < count; wire++)); do
        echo -netdev "stream,id=n$wire,server=$server,addr.type=unix,addr.path=$folder/wire$wire"
        echo -device "virtio-net-pci,netdev=n$wire,mac=52:54:00:00:0$wire:0$end,host_mtu=1500"
    done
}

code() { cat "$1" 2>/dev/null || echo 124; }

machines() {
    local folder=$1 count=$2 wire first status
    rm -f "$folder"/wire? "$folder"/code.?
    # shellcheck disable=SC2046
    boot a "$folder" $(wires on "$folder" "$count" 1) &
    first=$!
    for ((wire = 0; wire < count; wire++)); do
        for _ in $(seq 100); do [[ -S $folder/wire$wire ]] && break; sleep 0.1; done
    done
    # shellcheck disable=SC2046
    boot b "$folder" $(wires off "$folder" "$count" 2) || true
    wait "$first" || true
    status=$(code "$folder/code.a")
    ((status)) || status=$(code "$folder/code.b")
    exit "$status"
}

case ${1-} in
prepare) prepare ;;
one)
    prepare
    rm -f "$2/code.one"
    boot one "$2" -nic none || true
    exit "$(code "$2/code.one")"
    ;;
pair) prepare; machines "$2" 1 ;;
rails) prepare; machines "$2" 2 ;;
*) sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
