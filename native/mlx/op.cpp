#include "op.h"

#include <cstring>
#include <stdexcept>
#include <utility>

#include "mlx/allocator.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/ops.h"

namespace mlxcel::graph {
namespace {

class Node final : public mx::Primitive {
 public:
  Node(mx::Stream stream, const char* name, Kernel kernel)
      : mx::Primitive(stream), name_(name), kernel_(std::move(kernel)) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    mx::array& out = outputs[0];
    out.set_data(mx::allocator::malloc(out.nbytes()));
    if (out.size() == 0) return;
    auto& encoder = mx::cpu::get_command_encoder(stream());
    std::vector<Input> views;
    views.reserve(inputs.size());
    for (const mx::array& in : inputs) {
      encoder.set_input_array(in);
      views.push_back({in.data<char>(), in.shape(), in.strides(), in.dtype(), in.flags().row_contiguous});
    }
    encoder.set_output_array(out);
    encoder.dispatch([views = std::move(views), to = static_cast<void*>(out.data<char>()), kernel = kernel_] {
      kernel(views, to);
    });
  }

  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error(std::string(name_) + " runs on the CPU only");
  }

  const char* name() const override { return name_; }

 private:
  const char* name_;
  Kernel kernel_;
};

}  // namespace

size_t Input::size() const {
  size_t product = 1;
  for (const int n : shape) product *= n;
  return product;
}

Packed::Packed(const Input& input) : data_(input.data) {
  if (input.contiguous || input.size() == 0) return;
  // Whole rows at a time where their elements are side by side.
  int dims = static_cast<int>(input.shape.size());
  const bool rows = dims > 0 && input.strides[dims - 1] == 1;
  const size_t item = mx::size_of(input.type), run = rows ? item * input.shape[--dims] : item;
  copy_.resize(input.size() * item);
  std::vector<int> index(dims, 0);
  const auto* from = static_cast<const std::byte*>(input.data);
  for (size_t at = 0; at < copy_.size(); at += run) {
    int64_t offset = 0;
    for (int d = 0; d < dims; d++) offset += index[d] * input.strides[d];
    std::memcpy(copy_.data() + at, from + offset * static_cast<int64_t>(item), run);
    for (int d = dims - 1; d >= 0 && ++index[d] == input.shape[d]; d--) index[d] = 0;
  }
  data_ = copy_.data();
}

Rows::Rows(const Input& input)
    : start_(input.as<float>()), contiguous_(input.contiguous), length_(input.shape.empty() ? 1 : input.dim(-1)) {
  count_ = length_ ? input.size() / length_ : 0;
  if (contiguous_) return;
  if (input.strides.back() != 1 && length_ != 1) {
    copy_.emplace(input);
    start_ = copy_->as<float>();
    contiguous_ = true;
    return;
  }
  dims_ = static_cast<int>(input.shape.size()) - 1;
  shape_ = input.shape;
  strides_ = input.strides;
}

mx::array node(const char* name, mx::Shape shape, mx::Dtype type, std::vector<mx::array> inputs, Kernel kernel) {
  auto primitive = std::make_shared<Node>(mx::default_stream(mx::Device::cpu), name, std::move(kernel));
  return mx::array(std::move(shape), type, std::move(primitive), std::move(inputs));
}

mx::array to_float32(const mx::array& x) {
  if (x.dtype() == mx::float32) return x;
  if (x.dtype() == mx::complex64) throw std::invalid_argument("complex numbers are not served");
  return mx::astype(x, mx::float32);
}

Scalar scalar_of(mx::Dtype type) {
  if (type == mx::float32) return Scalar::Float32;
  if (type == mx::float16) return Scalar::Float16;
  if (type == mx::bfloat16) return Scalar::BFloat16;
  throw std::invalid_argument("floats must be float32, float16 or bfloat16");
}

mx::Shape with_last(const mx::array& x, int length) {
  mx::Shape shape = x.shape();
  shape.back() = length;
  return shape;
}

}  // namespace mlxcel::graph
