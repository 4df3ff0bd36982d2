// The cores that this process may use.
#ifndef CUSTOM_OPS_CPU_CORES_H_
#define CUSTOM_OPS_CPU_CORES_H_

#include <stdint.h>

namespace vit {

// The number of cores that the threads of this process may run on, at least 1: the cores of its
// affinity, but no more than the CPU quota of its control groups allows, rounded up. It is read
// once, when the library loads.
int64_t core_count();

// Lets core_count return another number, so that a test can have several cores; 0: the right one.
void choose_core_count(int64_t count);

// The CPU quota of a process in cores, or 0 if there is none. `root` is prepended to all paths: ""
// is the quota of this process, and a test has files elsewhere.
double cpu_quota(const char* root);

}  // namespace vit

#endif  // CUSTOM_OPS_CPU_CORES_H_
