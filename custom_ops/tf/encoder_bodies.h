// What the encoder op does in every runtime that calls it: see attention_bodies.h.
#ifndef CUSTOM_OPS_TF_ENCODER_BODIES_H_
#define CUSTOM_OPS_TF_ENCODER_BODIES_H_

#include <vector>

#include "custom_ops/cc/encoder.h"
#include "custom_ops/tf/encoder_checks.h"

namespace vit {

// The inputs are the tokens, the weights of every block, and the biases of every block.
class Encoder {
 public:
  static constexpr char kName[] = "VitEncoder";
  static constexpr int kConstantInput = -1;

  template <typename Context>
  absl::Status init(Context* c) {
    return get_attributes(c, &attributes_);
  }

  absl::Status check(const Arrays& inputs, Arrays* outputs) const {
    // 1 + 2 * blocks could overflow; the number of inputs cannot.
    const auto count = static_cast<int64_t>(inputs.size());
    if (count % 2 == 0 || count / 2 != attributes_.blocks) {
      return invalid("The op must have tokens, and weights and biases of ", attributes_.blocks,
                     " blocks. Received: ", count, " inputs.");
    }
    TF_RETURN_IF_ERROR(check_type("tokens", inputs[0], tensorflow::DT_FLOAT));
    TF_RETURN_IF_ERROR(check_tokens(inputs[0].dims, attributes_));
    const int64_t width = inputs[0].dims[2];
    for (int64_t i = 0; i < attributes_.blocks; ++i) {
      const Array &weights = inputs[1 + i], &biases = inputs[1 + attributes_.blocks + i];
      TF_RETURN_IF_ERROR(check_type("weights", weights, attributes_.type));
      TF_RETURN_IF_ERROR(check_type("biases", biases, tensorflow::DT_FLOAT));
      TF_RETURN_IF_ERROR(check_packed("weights", i, weights.dims, width, attributes_));
      TF_RETURN_IF_ERROR(check_packed("biases", i, biases.dims, width, attributes_));
    }
    *outputs = {{tensorflow::DT_FLOAT, inputs[0].dims, nullptr, "out"}};
    if (attributes_.first_row_only) (*outputs)[0].dims[1] = 1;
    return absl::OkStatus();
  }

  template <class DeviceExecution>
  typename DeviceExecution::Result run(const Arrays& inputs, const Arrays& outputs,
                                       const DeviceExecution& execution) const {
    if (outputs[0].elements() == 0) return {};
    std::vector<EncoderBlock> blocks;
    for (int64_t i = 0; i < attributes_.blocks; ++i) {
      blocks.push_back(
          {inputs[1 + i].data, static_cast<const float*>(inputs[1 + attributes_.blocks + i].data)});
    }
    const Dims& tokens = inputs[0].dims;
    EncoderProblem problem = {};
    problem.type = dtype_of(attributes_.type);
    problem.batch = tokens[0];
    problem.tokens = tokens[1];
    problem.width = tokens[2];
    problem.heads = attributes_.heads;
    problem.mlp_size = attributes_.mlp_size;
    problem.blocks = attributes_.blocks;
    problem.activation = attributes_.activation;
    problem.epsilon = attributes_.epsilon;
    problem.first_row_only = attributes_.first_row_only;
    problem.input = static_cast<const float*>(inputs[0].data);
    problem.block = blocks.data();
    problem.out = static_cast<float*>(outputs[0].data);
    return encoder(problem, execution);
  }

 private:
  EncoderAttributes attributes_;
};

}  // namespace vit

#endif  // CUSTOM_OPS_TF_ENCODER_BODIES_H_
