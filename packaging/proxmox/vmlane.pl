#!/usr/bin/perl
# A hookscript for Proxmox VE: a VM with vmlane's devices starts only if its daemon runs and its args are those of the
# configuration as it is now. To use it:
#   cp /usr/share/vmlane/proxmox/vmlane.pl /var/lib/vz/snippets/
#   qm set 100 --hookscript local:snippets/vmlane.pl
# Proxmox VE runs it with the VM's number and a phase. If it fails in the phase pre-start, the VM does not start, and the
# task's log has the reason.

use strict;
use warnings;

use PVE::QemuConfig;

my $VMLANE = '/usr/bin/vmlane';
my $RUNTIME = '/run/vmlane';

# What a command printed; words are words of their own, so no shell reads them. Its errors are in the task's log.
sub vmlane {
    my @words = @_;
    open(my $out, '-|', $VMLANE, @words) or die "cannot run $VMLANE: $!\n";
    my $text = do { local $/; <$out> };
    close($out) or die "'vmlane $words[0]' failed\n";
    return $text;
}

my ($vmid, $phase) = @ARGV;
die "usage: $0 VMID PHASE\n" if !defined($phase) || $vmid !~ m/^[0-9]+\z/;
exit(0) if $phase ne 'pre-start';

my $config = PVE::QemuConfig->load_config($vmid);
my $args = $config->{args} // '';
my %vms = map { $_ => 1 } $args =~ m{\Q$RUNTIME\E/vm/([^/]+)/}g;
exit(0) if !%vms;
my @vms = sort keys %vms;
die "args of VM $vmid have sockets of several VMs: @vms\n" if @vms > 1;
my $vm = $vms[0];

# Newer versions write memory as a list: current=2048.
my ($memory) = ($config->{memory} // 512) =~ m/^(?:current=)?([0-9]+)/ or die "VM $vmid: memory is no number\n";
die "VM $vmid: numa and hugepages must be off, because args define the memory\n" if $config->{numa} || $config->{hugepages};
my $wanted = vmlane('proxmox-args', $vm, '--mem', $memory);
chomp($wanted);
if ($args ne $wanted) {
    die "args of VM $vmid are not those of vmlane's VM $vm with $memory MiB; run:\n"
        . "  qm set $vmid --args \"\$(vmlane attach $vm --for proxmox --mem $memory)\"\n";
}
# It fails if no daemon answers.
vmlane('status');
exit(0);
