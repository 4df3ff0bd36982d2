// Products of a warpgroup, four neighboring warps, on the tensor cores of capability 9.0. They run
// beside the instructions that follow, until wait_for_products. device.h includes this file.
#ifndef CUSTOM_OPS_CUDA_WARPGROUP_PRODUCTS_H_
#define CUSTOM_OPS_CUDA_WARPGROUP_PRODUCTS_H_

#include <stdint.h>

namespace vit {

// Kernels for warpgroups are empty in the code for all other GPUs.
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr bool kHasWarpgroups = false;
#else
constexpr bool kHasWarpgroups = true;
#endif

// The operand b[16, n] in shared memory: matrices of 8 x 8 elements of 16 bits, each in 128 bytes
// one after the other. The next matrix along k is `k_bytes` further, along n `n_bytes`. The rows of
// 16 bytes of a matrix come from b, or from its transpose (start_products says which).
struct SharedMatrices {
  uint64_t bits;

  static VIT_DEVICE_METHOD SharedMatrices at(const void* data, int k_bytes, int n_bytes) {
    const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(data));
    const uint32_t low = address / 16 | static_cast<uint32_t>(k_bytes) / 16 << 16;
    return {low | static_cast<uint64_t>(n_bytes / 16) << 32};
  }
  // The same matrices, a multiple of 16 bytes further.
  VIT_DEVICE_METHOD SharedMatrices further(int bytes) const {
    return {bits + static_cast<uint32_t>(bytes) / 16};
  }
};

// Makes what this thread wrote to shared memory, copies that it waited for included, visible to the
// products of all threads that later leave the same barrier.
VIT_DEVICE void publish_to_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Keeps the compiler from moving reads and writes of sums across this place.
template <int kTiles>
VIT_DEVICE void pin(float (&sums)[kTiles][4]) {
#pragma unroll
  for (auto& tile : sums) {
    asm volatile("" : "+f"(tile[0]), "+f"(tile[1]), "+f"(tile[2]), "+f"(tile[3])::"memory");
  }
}

// All threads of the warpgroup call what follows. Operands and sums may change between
// wait_for_products and begin_products only.
VIT_DEVICE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
VIT_DEVICE void wait_for_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

#define VIT_SUMS_8(s, i) "+f"(s[i][0]), "+f"(s[i][1]), "+f"(s[i][2]), "+f"(s[i][3])
#define VIT_SUMS_16(s, i) VIT_SUMS_8(s, i), VIT_SUMS_8(s, i + 1)
#define VIT_SUMS_32(s, i) VIT_SUMS_16(s, i), VIT_SUMS_16(s, i + 2)
#define VIT_SUMS_48(s, i) VIT_SUMS_32(s, i), VIT_SUMS_16(s, i + 4)
#define VIT_SUMS_64(s, i) VIT_SUMS_32(s, i), VIT_SUMS_32(s, i + 4)
#define VIT_SUMS_80(s, i) VIT_SUMS_64(s, i), VIT_SUMS_16(s, i + 8)
#define VIT_SUMS_96(s, i) VIT_SUMS_64(s, i), VIT_SUMS_32(s, i + 8)
#define VIT_SUMS_112(s, i) VIT_SUMS_64(s, i), VIT_SUMS_48(s, i + 8)

// The operands after the sums have the numbers a0 to a3, b, add and rows.
#define VIT_PRODUCTS(columns, type, names, a0, a1, a2, a3, matrix, add_number, rows_number)     \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add_number                                   \
               ", 0;\n"                                                                         \
               "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type " {" names \
               "}, {" a0 "," a1 "," a2 "," a3 "}, " matrix ", p, 1, 1, " rows_number ";\n}"     \
               : VIT_SUMS_##columns(sums, 0)                                                    \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(int{add}),        \
                 "n"(int{kOfRows}))

#define VIT_NAMES_8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define VIT_NAMES_16 VIT_NAMES_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define VIT_NAMES_24 VIT_NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define VIT_NAMES_32 VIT_NAMES_24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define VIT_NAMES_40 VIT_NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39"

#define VIT_NAMES_48 VIT_NAMES_40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define VIT_NAMES_56 VIT_NAMES_48 ",%48,%49,%50,%51,%52,%53,%54,%55"

#define VIT_PRODUCTS_OF_TYPE(type)                                                          \
  if constexpr (kColumns == 16) {                                                           \
    VIT_PRODUCTS(16, type, VIT_NAMES_8, "%8", "%9", "%10", "%11", "%12", "%13", "%14");     \
  } else if constexpr (kColumns == 32) {                                                    \
    VIT_PRODUCTS(32, type, VIT_NAMES_16, "%16", "%17", "%18", "%19", "%20", "%21", "%22");  \
  } else if constexpr (kColumns == 48) {                                                    \
    VIT_PRODUCTS(48, type, VIT_NAMES_24, "%24", "%25", "%26", "%27", "%28", "%29", "%30");  \
  } else if constexpr (kColumns == 64) {                                                    \
    VIT_PRODUCTS(64, type, VIT_NAMES_32, "%32", "%33", "%34", "%35", "%36", "%37", "%38");  \
  } else if constexpr (kColumns == 80) {                                                    \
    VIT_PRODUCTS(80, type, VIT_NAMES_40, "%40", "%41", "%42", "%43", "%44", "%45", "%46");  \
  } else if constexpr (kColumns == 96) {                                                    \
    VIT_PRODUCTS(96, type, VIT_NAMES_48, "%48", "%49", "%50", "%51", "%52", "%53", "%54");  \
  } else {                                                                                  \
    VIT_PRODUCTS(112, type, VIT_NAMES_56, "%56", "%57", "%58", "%59", "%60", "%61", "%62"); \
  }

// sums[64, kColumns] = a[64, 16] b[16, kColumns], added to the sums if `add`. Each warp has 16 rows
// of a and of the sums, both as in multiply_add; of the sums, the kColumns / 8 first elements.
// kOfRows: the rows of 16 bytes of the matrices come from b, otherwise from its transpose.
template <class T, int kColumns, bool kOfRows, int kTiles>
VIT_DEVICE void start_products(const uint32_t (&a)[4], SharedMatrices b, float (&sums)[kTiles][4],
                               bool add) {
  static_assert(kColumns <= 8 * kTiles && kColumns % 16 == 0 && kColumns <= 112);
  if constexpr (sizeof(T*) && __is_same(T, Bfloat16)) {
    VIT_PRODUCTS_OF_TYPE("bf16")
  } else {
    VIT_PRODUCTS_OF_TYPE("f16")
  }
}

#undef VIT_PRODUCTS_OF_TYPE
#undef VIT_PRODUCTS

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_WARPGROUP_PRODUCTS_H_
