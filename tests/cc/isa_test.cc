// The selection of an instruction set, by processor and by name.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__linux__) && defined(__x86_64__)
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

#include "custom_ops/cpu/isa.h"

namespace {

using vit::Isa;

int failures = 0;

void expect(bool condition, const char* what) {
  if (condition) return;
  ++failures;
  fprintf(stderr, "failed: %s\n", what);
}

bool mentions(const char* text, const char* part) { return text && strstr(text, part); }

// The best set is the highest one, but not the slow pairs of bfloat16 of Intel's processors.
bool may_be_best(Isa isa) {
  int highest = vit::kIsaCount - 1;
  while (!vit::isa_available(static_cast<Isa>(highest))) --highest;
  if (static_cast<int>(isa) == highest) return true;
#if defined(__x86_64__)
  return __builtin_cpu_is("intel") && static_cast<Isa>(highest) == Isa::kAvx512Bf16 &&
         isa == Isa::kAvx512;
#else
  return false;
#endif
}

#if defined(__linux__) && defined(__x86_64__)
// Makes the kernel of Linux refuse a call of this process: without it tiles may not be used.
// Returns false if the filter cannot be installed here.
bool refuse_arch_prctl() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {sizeof filter / sizeof *filter, filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// In a process of its own.
void test_without_permission_for_tiles() {
  const pid_t child = fork();
  if (child == 0) {
    if (!refuse_arch_prctl()) _exit(0);
    failures = 0;
    expect(!vit::isa_available(Isa::kAmx), "amx is not available without permission");
    expect(
        !vit::choose_isa("") && vit::current_isa() != Isa::kAmx && may_be_best(vit::current_isa()),
        "the best set without permission is one without tiles");
    expect(mentions(vit::choose_isa("amx"), "does not have"), "amx is refused by its name");
    _exit(failures != 0);
  }
  int status = -1;
  expect(child > 0 && waitpid(child, &status, 0) == child && status == 0,
         "a process without permission for tiles uses a lower set");
}
#endif

}  // namespace

int main() {
  vit::choose_isa("");
  expect(vit::isa_available(Isa::kBaseline), "the baseline is available");
  const Isa best = vit::current_isa();
  expect(vit::isa_available(best), "the best instruction set is available");
  expect(may_be_best(best), "the best instruction set is chosen");
  expect(vit::isa_error() == nullptr, "there is no error without VIT_ISA");

  for (int i = 0; i < vit::kIsaCount; ++i) {
    const Isa isa = static_cast<Isa>(i), before = vit::current_isa();
    // Another library may have asked for the permission to use tiles too.
    expect(vit::isa_available(isa) == vit::isa_available(isa),
           "asked again the answer is the same");
    const char* error = vit::choose_isa(vit::isa_name(isa));
    if (vit::isa_available(isa)) {
      expect(!error && vit::current_isa() == isa, "an available set is chosen by its name");
    } else {
      expect(vit::current_isa() == before, "a set that is not available changes nothing");
      expect(mentions(error, "does not have"), "the error reports a set that is not available");
    }
  }
  const Isa last = vit::current_isa();
  expect(mentions(vit::choose_isa("AVX2"), "unknown"), "the error reports an unknown name");
  expect(vit::current_isa() == last, "an unknown name changes nothing");
  expect(!vit::choose_isa("") && vit::current_isa() == best, "an empty name means the best set");
#if defined(__linux__) && defined(__x86_64__)
  test_without_permission_for_tiles();
#endif
  return failures != 0;
}
