/* VMCI sockets on a host that vmlane serves: the names of the VMCI Sockets Programming Guide.
 *
 * Compile against this header and link libvmlane_vsock.so (before libc, as -l does it): socket(), bind(),
 * listen(), accept(), connect() and the others then understand the address family below. The library asks
 * the daemon at $VMLANE_RUNTIME_DIR (else at $XDG_RUNTIME_DIR/vmlane if a user other than root has one
 * there, else at /run/vmlane).
 */
#ifndef VMLANE_VSOCK_H
#define VMLANE_VSOCK_H

#include <sys/socket.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Both headers give the same layout; Linux's comes first if it was included first. */
#ifndef VMADDR_CID_ANY
#define VMADDR_CID_ANY ((unsigned int)-1)
#define VMADDR_PORT_ANY ((unsigned int)-1)
#define VMADDR_CID_HYPERVISOR 0
#define VMADDR_CID_HOST 2

struct sockaddr_vm {
    sa_family_t svm_family;
    unsigned short svm_reserved1;
    unsigned int svm_port;
    unsigned int svm_cid;
    unsigned char svm_zero[4];
};
#endif

/* Options at the level of the address family; values are uint64_t, in bytes. */
#define SO_VMCI_BUFFER_SIZE 0
#define SO_VMCI_BUFFER_MIN_SIZE 1
#define SO_VMCI_BUFFER_MAX_SIZE 2
#define SO_VMCI_PEER_HOST_VM_ID 3
#define SO_VMCI_CONNECT_TIMEOUT 6

/* The address family, for socket() and svm_family. */
int VMCISock_GetAFValue(void);
/* The same; *fd is to be given back with VMCISock_ReleaseAFValueFd. */
int VMCISock_GetAFValueFd(int *fd);
void VMCISock_ReleaseAFValueFd(int fd);
/* The context id of this side: 2 on a host. */
unsigned int VMCISock_GetLocalCID(void);
/* (unsigned)-1: not known. */
unsigned int VMCISock_Version(void);

#ifdef __cplusplus
}
#endif
#endif
