// A second device for tests without a GPU: its tensors lie in the memory of the processor, under another name.
//
// The storage of a tensor of the device holds a storage of the processor. An operator runs on aliases that share the
// latter, so that what it writes, resizes or returns as a view of an argument is right without a copy.

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <limits>
#include <utility>
#include <vector>

namespace {

using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using c10::Storage;

const c10::Device DEVICE(c10::kPrivateUse1, 0);

// What a storage of the device holds: one of the processor, and its bytes when it was taken.
struct Held {
  Storage storage;
  int64_t bytes;
};

Storage& on_processor(const Storage& storage) {
  return static_cast<Held*>(storage.data_ptr().get_context())->storage;
}

// Bytes that tensors of the device hold, and may hold.
std::atomic<int64_t> held_bytes{0};
std::atomic<int64_t> most_bytes{std::numeric_limits<int64_t>::max()};

// A pointer of the device that keeps a storage of the processor alive.
c10::DataPtr pointer(const Storage& storage) {
  auto bytes = static_cast<int64_t>(storage.nbytes());
  TORCH_CHECK_WITH(OutOfMemoryError, held_bytes + bytes <= most_bytes, "the device has no room for ", bytes, " bytes");
  held_bytes += bytes;
  auto forget = [](void* context) {
    auto held = static_cast<Held*>(context);
    held_bytes -= held->bytes;
    delete held;
  };
  return {storage.data_ptr().get(), new Held{storage, bytes}, forget, DEVICE};
}

Tensor strided(Storage storage, DispatchKey key, const Tensor& like) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), DispatchKeySet(key), like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return made;
}

// A tensor in a compressed layout, whose three parts are made from those of another.
template <typename Make>
Tensor compressed(DispatchKey key, c10::Device device, const Tensor& like, Make make) {
  auto parts = static_cast<at::SparseCsrTensorImpl*>(like.unsafeGetTensorImpl());
  auto made = at::detail::make_tensor<at::SparseCsrTensorImpl>(
      DispatchKeySet(key), device, like.layout(), like.dtype());
  static_cast<at::SparseCsrTensorImpl*>(made.unsafeGetTensorImpl())
      ->set_member_tensors(
          make(parts->compressed_indices()), make(parts->plain_indices()), make(parts->values()), like.sizes());
  return made;
}

// One call of an operator: the way of its arguments to the processor, and of its results to the device.
class Call {
 public:
  IValue argument(const IValue& value) {
    if (value.isDevice() && value.toDevice().type() == c10::kPrivateUse1)
      return c10::Device(c10::kCPU);
    return mapped(value, [this](const Tensor& t) { return alias(t); });
  }

  IValue result(const IValue& value) {
    return mapped(value, [this](const Tensor& t) { return device_tensor(t); });
  }

  // Tensors of no dimension are numbers, which a GPU takes from the processor, too.
  void require_one_device(const c10::OperatorHandle& op) const {
    TORCH_CHECK(!(elsewhere_ && here_), op.schema().name(), ": tensors on two devices, ", DEVICE, " and cpu");
  }

  // Gives arguments the size and the memory that an operator gave their aliases.
  void update_arguments() {
    for (auto& [tensor, alias] : tensors_) {
      if (alias.layout() != c10::kStrided)
        continue;
      const auto& there = tensor.storage();
      const auto& here = alias.storage();
      if (there.data_ptr().get() != here.data_ptr().get() || there.nbytes() != here.nbytes()) {
        there.unsafeGetStorageImpl()->set_data_ptr_noswap(pointer(here));
        there.unsafeGetStorageImpl()->set_nbytes(here.nbytes());
      }
      if (tensor.sizes() != alias.sizes() || tensor.strides() != alias.strides() ||
          tensor.storage_offset() != alias.storage_offset())
        tensor.unsafeGetTensorImpl()->set_sizes_and_strides(alias.sizes(), alias.strides(), alias.storage_offset());
    }
  }

  Tensor alias(const Tensor& t) {
    if (!t.defined())
      return t;
    if (t.device() != DEVICE) {
      elsewhere_ |= t.dim() > 0;
      return t;
    }
    here_ = true;
    Tensor made;
    if (t.layout() == c10::kStrided) {
      storages_.emplace_back(t.storage(), on_processor(t.storage()));
      made = strided(on_processor(t.storage()), DispatchKey::CPU, t);
    } else {
      auto part = [this](const Tensor& p) { return alias(p); };
      made = compressed(DispatchKey::SparseCsrCPU, c10::kCPU, t, part);
    }
    tensors_.emplace_back(t, made);
    return made;
  }

 private:
  template <typename Function>
  static IValue mapped(const IValue& value, Function function) {
    if (value.isTensor())
      return function(value.toTensor());
    if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& t : value.toTensorVector())
        list.push_back(function(t));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (const auto& t : value.toOptionalTensorVector())
        list.push_back(t ? std::optional<Tensor>(function(*t)) : t);
      return list;
    }
    return value;
  }

  Tensor device_tensor(const Tensor& t) {
    if (!t.defined() || t.device() == DEVICE)
      return t;
    for (const auto& [tensor, alias] : tensors_) {
      if (alias.is_same(t))
        return tensor;
    }
    if (t.layout() == c10::kStrided)
      return strided(device_storage(t.storage()), DispatchKey::PrivateUse1, t);
    return compressed(
        DispatchKey::SparseCsrPrivateUse1, DEVICE, t, [this](const Tensor& part) { return device_tensor(part); });
  }

  // The argument's storage, where a result is a view of one, so that torch sees the two share it.
  Storage device_storage(const Storage& storage) {
    for (const auto& [known, processor] : storages_) {
      if (processor.is_alias_of(storage))
        return known;
    }
    Storage made(Storage::use_byte_size_t(), storage.nbytes(), pointer(storage), nullptr, false);
    storages_.emplace_back(made, storage);
    return made;
  }

  std::vector<std::pair<Tensor, Tensor>> tensors_;
  std::vector<std::pair<Storage, Storage>> storages_;
  bool here_ = false;
  bool elsewhere_ = false;
};

void run_on_processor(const c10::OperatorHandle& op, DispatchKeySet, torch::jit::Stack* stack) {
  at::AutoDispatchBelowADInplaceOrView below;
  Call call;
  for (auto i = stack->size() - op.schema().arguments().size(); i < stack->size(); ++i)
    (*stack)[i] = call.argument((*stack)[i]);
  call.require_one_device(op);
  op.callBoxed(stack);
  call.update_arguments();
  for (auto i = stack->size() - op.schema().returns().size(); i < stack->size(); ++i)
    (*stack)[i] = call.result((*stack)[i]);
}

// The one way between the devices.
Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  at::AutoDispatchBelowADInplaceOrView below;
  Call call;
  call.alias(to).copy_(call.alias(from), non_blocking);
  return to;
}

// Operators are done when they return: there is nothing to wait for.
struct Guard final : c10::impl::NoOpDeviceGuardImpl<c10::kPrivateUse1> {
  c10::Device exchangeDevice(c10::Device) const override { return DEVICE; }
  c10::Device getDevice() const override { return DEVICE; }
  c10::Stream getStream(c10::Device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, DEVICE); }
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
};

const bool registered = [] {
  c10::impl::registerDeviceGuard(c10::kPrivateUse1, new Guard());
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

}  // namespace

TORCH_LIBRARY(shoal_other, library) {
  library.def("held() -> int", []() -> int64_t { return held_bytes; });
  library.def("limit(int bytes) -> ()", [](int64_t bytes) { most_bytes = bytes; });
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_processor>());
}

TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_processor>());
}

// Before a fallback, torch takes what it has for any layout, as of `crow_indices`: an error.
TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, library) {
  for (const auto& op : c10::Dispatcher::singleton().getRegistrationsForDispatchKey(DispatchKey::SparseCsrCPU))
    library.impl(toString(op).c_str(), torch::CppFunction::makeFromBoxedFunction<&run_on_processor>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_copy_from", &copy_from);
  library.impl("_sparse_compressed_tensor_unsafe", torch::CppFunction::makeFromBoxedFunction<&run_on_processor>());
}
