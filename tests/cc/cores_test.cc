// The cores that a process may use: its affinity and the quotas of its control groups.
#include "custom_ops/cpu/cores.h"

#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/cc/check.h"

namespace {

using namespace vit_test;

// A folder with the files of a system, which is removed afterwards.
class System {
 public:
  System() {
    std::string path = std::filesystem::temp_directory_path() / "cores-XXXXXX";
    if (!mkdtemp(path.data())) abort();
    root_ = path;
  }
  ~System() { std::filesystem::remove_all(root_); }
  System& file(const std::string& path, const std::string& text) {
    const std::filesystem::path full = root_ / path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text << "\n";
    return *this;
  }
  void expect(double quota, const char* of) const {
    const double received = vit::cpu_quota(root_.c_str());
    EXPECT(received == quota, "%s: %g cores, not %g", of, received, quota);
  }

 private:
  std::filesystem::path root_;
};

void test_quotas() {
  testing("quotas");
  const char* groups = "proc/self/cgroup";
  const std::string top = "sys/fs/cgroup/";
  System().expect(0, "no control groups");
  System().file(groups, "0::/").expect(0, "no limits");
  System().file(groups, "0::/").file(top + "cpu.max", "150000 100000").expect(1.5, "a container");
  System().file(groups, "0::/").file(top + "cpu.max", "max 100000").expect(0, "max");
  System()
      .file(groups, "0::/a/b")
      .file(top + "cpu.max", "max 100000")
      .file(top + "a/cpu.max", "200000 100000")
      .file(top + "a/b/cpu.max", "400000 100000")
      .expect(2, "a group in a smaller one");
  System()
      .file(groups, "4:memory:/x\n3:cpu,cpuacct:/x\n0::/")
      .file(top + "cpu/x/cpu.cfs_quota_us", "50000")
      .file(top + "cpu/x/cpu.cfs_period_us", "100000")
      .file(top + "cpu/cpu.cfs_quota_us", "-1")
      .file(top + "cpu/cpu.cfs_period_us", "100000")
      .expect(0.5, "version 1");
  System().file(groups, "nonsense\n0::\n").file(top + "cpu.max", "x").expect(0, "nonsense");
}

void test_count() {
  testing("count");
  const int64_t here = vit::core_count();
  EXPECT(here >= 1 && here <= sysconf(_SC_NPROCESSORS_CONF), "%lld cores", number(here));
  vit::choose_core_count(7);
  EXPECT(vit::core_count() == 7, "%lld cores, not 7", number(vit::core_count()));
  vit::choose_core_count(0);
  EXPECT(vit::core_count() == here, "%lld cores, not %lld", number(vit::core_count()),
         number(here));
}

}  // namespace

int main() {
  test_quotas();
  test_count();
  return finish();
}
