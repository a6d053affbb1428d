// SPDX-License-Identifier: Apache-2.0
// Attention inside a C++ program that has its own OpenCL objects, by the C++ bindings of Khronos
// (opencl-clhpp): clattn takes the application's context, device, queue and buffers as they are.
#define CL_HPP_TARGET_OPENCL_VERSION 120
#define CL_HPP_MINIMUM_OPENCL_VERSION 120
#define CL_HPP_ENABLE_EXCEPTIONS
#include <CL/opencl.hpp>

#include <clattn/opencl.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

namespace {

struct destroy_clattn {
    void operator()(clattn_context *ctx) const { clattn_context_destroy(&ctx); }
    void operator()(clattn_plan *plan) const { clattn_plan_destroy(&plan); }
};
using context_ptr = std::unique_ptr<clattn_context, destroy_clattn>;
using plan_ptr = std::unique_ptr<clattn_plan, destroy_clattn>;

void check(clattn_status status)
{
    if (status != CLATTN_OK)
        throw std::runtime_error(clattn_status_string(status));
}

clattn_buf buf(const cl::Buffer &buffer)
{
    clattn_buf b{};
    b.kind = CLATTN_BUF_CL_MEM;
    b.ptr = buffer();
    return b;
}

// The first device of any platform.
cl::Device find_device()
{
    std::vector<cl::Platform> platforms;
    cl::Platform::get(&platforms);
    for (const cl::Platform &platform : platforms) {
        std::vector<cl::Device> devices;
        try {
            platform.getDevices(CL_DEVICE_TYPE_ALL, &devices);
        } catch (const cl::Error &) {
            continue; // a platform without devices
        }
        if (!devices.empty())
            return devices[0];
    }
    throw std::runtime_error("no OpenCL device");
}

int run()
{
    constexpr int32_t heads = 8, len = 128, dim = 64;
    const cl::Device device = find_device();
    const cl::Context context(device);
    const cl::CommandQueue queue(context, device);

    std::mt19937 generator(1);
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::vector<float> q(heads * len * dim), k(q.size()), v(q.size()), o(q.size()), want(q.size());
    for (std::vector<float> *x : {&q, &k, &v})
        for (float &element : *x)
            element = uniform(generator);
    const cl::Buffer mem_q(context, q.begin(), q.end(), true);
    const cl::Buffer mem_k(context, k.begin(), k.end(), true);
    const cl::Buffer mem_v(context, v.begin(), v.end(), true);
    const cl::Buffer mem_o(context, CL_MEM_READ_WRITE, o.size() * sizeof(float));

    clattn_context *made = nullptr;
    check(clattn_context_create_opencl(nullptr, context(), device(), queue(), &made));
    const context_ptr ctx(made);

    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = dim;
    desc.heads_q = heads;
    desc.features = CLATTN_FEATURE_CAUSAL;
    clattn_plan *planned = nullptr;
    check(clattn_attention_plan_create(ctx.get(), &desc, &planned));
    const plan_ptr plan(planned);

    clattn_attention_call call;
    clattn_attention_call_init(&call, sizeof call);
    call.batch = 1;
    call.len_q = call.len_kv = len;
    call.q.buf = buf(mem_q);
    call.k.buf = buf(mem_k);
    call.v.buf = buf(mem_v);
    call.o.buf = buf(mem_o);

    cl_event event = nullptr;
    check(clattn_attention_enqueue(plan.get(), &call, queue(), 0, nullptr, &event));
    const std::vector<cl::Event> done{cl::Event(event)}; // releases it at its end
    queue.enqueueReadBuffer(mem_o, CL_TRUE, 0, o.size() * sizeof(float), o.data(), &done);

    // The same by the definition, in double precision.
    desc.algo = CLATTN_ALGO_REFERENCE;
    clattn_plan *defined = nullptr;
    check(clattn_attention_plan_create(ctx.get(), &desc, &defined));
    const plan_ptr reference(defined);
    call.q.buf = clattn_host_buf(q.data(), 0);
    call.k.buf = clattn_host_buf(k.data(), 0);
    call.v.buf = clattn_host_buf(v.data(), 0);
    call.o.buf = clattn_host_buf(want.data(), 0);
    check(clattn_attention_run(reference.get(), &call));

    float most = 0;
    for (std::size_t i = 0; i < o.size(); i++)
        most = std::max(most, std::abs(o[i] - want[i]));
    std::cout << device.getInfo<CL_DEVICE_NAME>() << ": largest difference " << most << "\n";
    return most <= 1e-5f ? 0 : 1;
}

} // namespace

int main()
{
    try {
        return run();
    } catch (const cl::Error &e) {
        std::cerr << e.what() << ": OpenCL error " << e.err() << "\n";
    } catch (const std::exception &e) {
        std::cerr << e.what() << "\n";
    }
    return 1;
}
