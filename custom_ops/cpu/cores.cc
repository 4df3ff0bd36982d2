#include "custom_ops/cpu/cores.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <string>

namespace vit {

namespace {

// The quota in a folder of a control group, in cores; 0 if there is none.
double quota_of(const std::string& folder) {
  double quota = 0, period = 0;
  std::ifstream version_2(folder + "/cpu.max");  // "max 100000" if there is no limit
  if (!(version_2 >> quota >> period)) {
    std::ifstream version_1(folder + "/cpu.cfs_quota_us");  // -1 if there is no limit
    std::ifstream version_1_period(folder + "/cpu.cfs_period_us");
    if (!(version_1 >> quota) || !(version_1_period >> period)) return 0;
  }
  return quota > 0 && period > 0 ? quota / period : 0;
}

// The least quota of a control group and of those around it.
double least_quota(const std::string& top, std::string group) {
  double least = 0;
  for (;;) {
    const double quota = quota_of(top + group);
    if (quota > 0) least = least > 0 ? std::min(least, quota) : quota;
    if (group.empty()) return least;
    group.erase(group.find_last_of('/'));
  }
}

int64_t count_cores() {
  cpu_set_t affinity;
  int64_t cores = sched_getaffinity(0, sizeof(affinity), &affinity) == 0
                      ? CPU_COUNT(&affinity)
                      : int64_t{sysconf(_SC_NPROCESSORS_ONLN)};  // more than 1,024 cores
  const double quota = cpu_quota("");
  if (quota > 0) cores = std::min(cores, static_cast<int64_t>(ceil(quota)));
  return std::max<int64_t>(cores, 1);
}

const int64_t counted = count_cores();
std::atomic<int64_t> chosen{counted};

}  // namespace

int64_t core_count() { return chosen; }

void choose_core_count(int64_t count) { chosen = count > 0 ? count : counted; }

double cpu_quota(const char* root) {
  const std::string top = std::string(root) + "/sys/fs/cgroup";
  std::ifstream groups(std::string(root) + "/proc/self/cgroup");
  // Lines are "0::/group", or "4:cpu,cpuacct:/group" in version 1.
  double least = 0;
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string group = line.substr(second + 1);
    if (group.empty() || group[0] != '/' || group == "/") group.clear();
    const bool version_2 = controllers == ",,";
    if (!version_2 && controllers.find(",cpu,") == std::string::npos) continue;
    const double quota = least_quota(version_2 ? top : top + "/cpu", group);
    if (quota > 0) least = least > 0 ? std::min(least, quota) : quota;
  }
  return least;
}

}  // namespace vit
