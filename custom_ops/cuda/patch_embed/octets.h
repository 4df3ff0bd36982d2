// Octets, 8 elements that are neighbours in memory, moved as vectors of 16 bytes where they are
// aligned.
#ifndef CUSTOM_OPS_CUDA_PATCH_EMBED_OCTETS_H_
#define CUSTOM_OPS_CUDA_PATCH_EMBED_OCTETS_H_

#include <string.h>

#include "custom_ops/cuda/device.h"

namespace vit {

constexpr int kOctet = 8;

// The number that the lower bits of a word are.
template <class T>
VIT_DEVICE T number_of_bits(uint32_t bits) {
  T number;
  if constexpr (sizeof(T) == 1) {
    number = static_cast<uint8_t>(bits);
  } else if constexpr (sizeof(T) == 2) {
    const uint16_t half = static_cast<uint16_t>(bits);
    memcpy(&number, &half, 2);
  } else {
    memcpy(&number, &bits, 4);
  }
  return number;
}

// Bits of a number of at most 4 bytes.
template <class T>
VIT_DEVICE uint32_t bits_of_number(T number) {
  if constexpr (sizeof(T) == 1) {
    return number;
  } else if constexpr (sizeof(T) == 2) {
    uint16_t half;
    memcpy(&half, &number, 2);
    return half;
  } else {
    uint32_t bits;
    memcpy(&bits, &number, 4);
    return bits;
  }
}

// Element i of the elements in the words.
template <class T>
VIT_DEVICE T number_of_words(const uint32_t* words, int i) {
  constexpr int kPerWord = 4 / sizeof(T), kBits = 8 * sizeof(T);
  return number_of_bits<T>(words[i / kPerWord] >> i % kPerWord * kBits % 32);
}

// Reads the first `count` elements, of at most 4 bytes; values behind them are 0.
template <class T>
VIT_DEVICE void load_octet(const T* from, int64_t count, bool is_aligned, float (&values)[kOctet]) {
  if (is_aligned && count >= kOctet) {
    constexpr int kWords = 2 * sizeof(T), kVector = kWords < 4 ? kWords : 4;
    uint32_t words[kWords];
#pragma unroll
    for (int i = 0; i < kWords; i += kVector) {
      load_words<kVector>(from + i * 4 / sizeof(T), words + i);
    }
#pragma unroll
    for (int i = 0; i < kOctet; ++i) values[i] = to_float(number_of_words<T>(words, i));
    return;
  }
#pragma unroll
  for (int i = 0; i < kOctet; ++i) values[i] = i < count ? to_float(from[i]) : 0.0f;
}

// Writes the first `count` elements.
template <class T>
VIT_DEVICE void store_octet(T* to, const T (&values)[kOctet], int64_t count, bool is_aligned) {
  if (is_aligned && count >= kOctet) {
    constexpr int kWords = 2 * sizeof(T), kInVector = 16 / sizeof(T);
    uint32_t words[kWords];
    memcpy(words, values, sizeof words);
#pragma unroll
    for (int i = 0; i < kWords; i += 4) store_words<4>(to + i / 4 * kInVector, words + i);
    return;
  }
#pragma unroll
  for (int i = 0; i < kOctet; ++i) {
    if (i < count) to[i] = values[i];
  }
}

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_PATCH_EMBED_OCTETS_H_
