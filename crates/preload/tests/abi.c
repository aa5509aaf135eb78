/* What programs that were compiled against the header of version 0.1 have in them: it is compiled with the header of
 * today. A line is added with each addition; none is changed without a new SONAME.
 */
#include "vmlane_vsock.h"
#include <stddef.h>

#define IS(what) _Static_assert(what, #what)

int VMCISock_GetAFValue(void);
int VMCISock_GetAFValueFd(int *);
void VMCISock_ReleaseAFValueFd(int);
unsigned int VMCISock_GetLocalCID(void);
unsigned int VMCISock_Version(void);

IS(sizeof(struct sockaddr_vm) == 16);
IS(offsetof(struct sockaddr_vm, svm_family) == 0 && sizeof(sa_family_t) == 2);
IS(offsetof(struct sockaddr_vm, svm_reserved1) == 2);
IS(offsetof(struct sockaddr_vm, svm_port) == 4);
IS(offsetof(struct sockaddr_vm, svm_cid) == 8);
IS(offsetof(struct sockaddr_vm, svm_zero) == 12);
IS(VMADDR_CID_ANY == 0xffffffffu && VMADDR_PORT_ANY == 0xffffffffu);
IS(VMADDR_CID_HYPERVISOR == 0 && VMADDR_CID_HOST == 2);
IS(SO_VMCI_BUFFER_SIZE == 0 && SO_VMCI_BUFFER_MIN_SIZE == 1 && SO_VMCI_BUFFER_MAX_SIZE == 2);
IS(SO_VMCI_PEER_HOST_VM_ID == 3 && SO_VMCI_CONNECT_TIMEOUT == 6);
